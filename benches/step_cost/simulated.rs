//! The CUDA source on the simulated driver, which `--simulate` among the arguments opens.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use tracing::subscriber::with_default;
use tracing_spec_decode::cuda::{CudaSource, Words};
use tracing_spec_decode::{Attached, Handle, SpecDecodeLayer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Registry, registry};

#[allow(unsafe_code)]
#[path = "../../examples/simulator/mod.rs"]
mod simulator;

/// Runs the steps with a source for each engine; false without a driver.
pub(super) fn run(layer: SpecDecodeLayer<Registry>, handle: &Handle, steps: impl FnOnce()) -> bool {
    let sources = ["0", "e1"].map(|engine| attach(handle, engine));
    let attached = sources.iter().all(Result::is_ok);
    if attached {
        with_default(registry().with(layer), steps);
    }
    attached
}

fn attach(handle: &Handle, engine: &str) -> Result<Attached, Box<dyn Error>> {
    simulator::open_if_asked()?;
    let stream = CudaContext::new(0)?.new_stream()?;
    let counters = Arc::new(stream.alloc_zeros::<i64>(2)?);
    let source = CudaSource::from_cudarc(counters, stream, Words::accepted_at(0).with_emitted_at(1))?;
    Ok(handle.attach(engine, source)?)
}
