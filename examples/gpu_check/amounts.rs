//! How much a check does, and what it comes to.

use std::error::Error;

use serde_json::Value;

/// What a check found, for the report.
pub(crate) type Outcome = Result<Value, Box<dyn Error>>;

/// How much is done: enough to mean something on a GPU, enough to run through on the simulator.
#[derive(Clone, Copy)]
pub(crate) struct Amounts {
    pub(crate) steps: usize,
    pub(crate) samples: usize,
    pub(crate) calls: usize,
    pub(crate) captures: usize,
    pub(crate) transfer_bytes: usize,
}
