//! Speculative decoding on llama.cpp: the engine that `tracing-spec-decode` is added to.
//!
//! [`engine`] has the decode loop and its `spec_decode_step` span; the rest of the library knows nothing of it.

pub mod counts;
pub mod engine;
pub mod lookahead;
mod lookup;
pub mod model;
mod proposer;
pub mod runner;
pub mod sampling;
pub mod sequence;
