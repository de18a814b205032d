//! Counters in device memory, copied to the host without a wait (feature `cuda`).
//!
//! [`CudaSource`] reads counters that an engine keeps already; [`DeviceCounters`] is a block of counters with the
//! kernels that count into it, for engines that have none. Both work by raw handles, so that any engine can use them,
//! whatever it reaches CUDA by: cudarc of another version, libtorch, C++.
//!
//! ```no_run
//! use tracing_spec_decode::cuda::{DeviceCounters, Mask, Tokens};
//! # fn engine(
//! #     handle: tracing_spec_decode::Handle,
//! #     stream: std::sync::Arc<cudarc::driver::CudaStream>,
//! #     (mask, output, batch): (u64, u64, u32),
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! // Once, when the engine has its stream. Five is the largest number of tokens that it drafts per sequence.
//! let counters = DeviceCounters::from_cudarc(&stream, 5)?;
//! let attached = handle.attach("0", counters.source()?)?;
//!
//! // In each step, behind the sampler: one launch, nothing comes back.
//! let step = tracing_spec_decode::step_span!(num_spec_tokens = 5).entered();
//! let verified = Mask { accepted: mask, output: Tokens::I64(output), drafted: 0, batch, k: 5 };
//! // SAFETY: the sampler's arrays are as large as that, and stay.
//! unsafe { counters.count_mask(verified) }?;
//! drop(step);
//! # Ok(())
//! # }
//! ```
//!
//! # What a sampled step does
//!
//! On the thread that ends the step, at most twelve driver calls and none that waits or allocates: the context and the
//! RELAXED capture mode are put in place; if the engine's stream is not being captured, the counters are copied on that
//! stream into a block of ours, which is what makes the sample belong to one instant; an event marks that point, our
//! own stream waits for it and copies the block to pinned memory; a second event marks the end. Mode and context are
//! put back on every path. The engine's stream never waits for ours. A poll is one query between the same brackets.
//!
//! # Time on the device
//!
//! In an engine that runs ahead of its device, a span's time is that of submitting a step. [`CudaSource::with_gpu_time`]
//! asks for the device's own time, of some of the steps that are sampled: events around the step and around its
//! `spec_decode_draft` and `spec_decode_verify` spans, in the engine's stream, at most seven driver calls for each, and
//! three more for the poll that finds the copy landed. A step that is captured, overlaps with another, or turns out not
//! to be the one that starts the copy has no time.
//!
//! # What stays
//!
//! Streams, events and blocks are made when a source is made, kept when it is dropped, and used again by the next one
//! of the same context; nothing is freed on the engine's thread. [`release_unused`] gives back what is not in use.
//!
//! # Where there is no driver
//!
//! Nothing is linked. Making a source looks for the driver library and for every function used of it, and answers with
//! a [`CudaError`] that says what to do. (An engine built with cudarc's `dynamic-linking` does not even start without a
//! driver: no library can change that.)
//!
//! After a `fork` a source is dead in the child and makes no call there: CUDA does not work in a forked child.

// The one place of the crate that talks to a driver.
#![allow(unsafe_code)]

mod block;
mod counters;
mod driver;
mod error;
mod guard;
mod interop;
mod kernel;
mod kit;
mod pool;
mod raw;
mod source;
mod timing;
mod words;

pub use counters::{DeviceCounters, Lengths, Mask, Tokens};
pub use driver::driver_version;
pub use error::CudaError;
pub use pool::release_unused;
pub use raw::RawParts;
pub use source::CudaSource;
pub use words::Words;
