//! What the layer, its filter, the handles and the instruments share.

use std::sync::atomic::AtomicU64;
#[cfg(feature = "otel")]
use std::time::Duration;

use crate::callsites::Callsites;
use crate::engines::Engines;
use crate::open_steps::OpenSteps;
use crate::ticks::Ticks;

/// The state of one layer.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) span_name: Box<str>,
    /// The process counts: its rank is 0.
    pub(crate) counts: bool,
    pub(crate) ticks: Ticks,
    #[cfg(feature = "otel")]
    pub(crate) interval: Duration,
    /// The interval in ticks.
    pub(crate) interval_ticks: u64,
    pub(crate) callsites: Callsites,
    pub(crate) steps: OpenSteps,
    pub(crate) engines: Engines,
    /// Steps that were dropped because their engine's name was refused, or there was no room for it.
    pub(crate) engine_refused: AtomicU64,
    /// Steps that were dropped because too many were open.
    pub(crate) open_steps_over_bound: AtomicU64,
}
