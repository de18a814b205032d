//! Speculative-decoding metrics for LLM engines, as a `tracing` layer.
//!
//! The engine wraps each step in a `spec_decode_step` span; the layer turns the spans into exact OpenTelemetry
//! metrics, and reads counters that live in device memory without stalling the decode loop.
//!
//! ```
//! use tracing_spec_decode::{builder, step_span};
//! use tracing_subscriber::layer::SubscriberExt;
//!
//! let (layer, handle) = builder().build()?;
//! let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
//!
//! let span = step_span!(num_spec_tokens = 5, num_drafts = 4);
//! span.in_scope(|| {
//!     // ... draft, verify, sample ...
//!     span.record("num_accepted_tokens", 13);
//! });
//! drop(span);
//!
//! let metrics = handle.metrics("0").expect("engine 0 has had a step");
//! assert_eq!(metrics.draft_acceptance_rate(), 0.65);
//! # Ok::<(), tracing_spec_decode::BuildError>(())
//! ```

#![deny(missing_docs, unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod acceptance;
mod anomaly;
mod attachment;
mod attributes;
mod baton;
mod books;
mod builder;
mod callsites;
mod collection;
mod collector;
#[cfg(feature = "cuda")]
pub mod cuda;
mod current;
mod delta;
mod engine;
mod engine_totals;
mod engines;
mod errors;
mod flush;
mod gpu_time;
mod handle;
mod host_counters;
#[cfg(feature = "otel")]
mod instruments;
mod layer;
mod marks;
mod metrics;
mod open_steps;
mod outcome;
mod payoff;
mod phases;
mod published;
mod quantity;
mod readers;
mod sample;
mod sequence;
mod shared;
mod slot;
pub mod source;
mod status;
mod step;
mod step_span;
mod sync;
mod table;
mod tally;
mod ticks;
mod totals;
#[cfg(feature = "otel-trace")]
mod trace;
#[cfg(feature = "otel")]
mod view;
mod visitor;
mod window;

pub use acceptance::Basis;
pub use attributes::EngineAttributes;
pub use builder::{BuildError, Builder, builder};
pub use errors::{AttachError, DescribeError, FlushError, FlushFailure};
pub use handle::{Attached, Handle};
pub use host_counters::{HostCounters, HostSource};
pub use layer::{SpecDecodeLayer, StepFilter, StepLayer};
pub use metrics::{GpuTotals, SpecDecodeMetrics, StepTotals, TimedSteps};
pub use payoff::{BestNumSpecTokens, Estimate, Payoff};
pub use status::{SourceState, Status};
pub use totals::{EngineTotals, Totals};
#[cfg(feature = "otel-trace")]
pub use trace::CollectingSteps;

/// What the macros need.
#[doc(hidden)]
pub mod __private {
    pub use tracing::field::{Empty, debug, display};
    pub use tracing::info_span;
}
