//! Speculative-decoding metrics for LLM engines, as a `tracing` layer.
pub mod source;
