//! What a soak is made of: a device that fails at random, and an engine's thread that knows what it has done.
#![allow(unreachable_pub, missing_docs)]

pub mod device;
pub mod engine;
#[path = "../../examples/quickstart/rng.rs"]
pub mod rng;
