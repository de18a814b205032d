//! Captures, of another engine's stream and of the sampled one: they stay whole, and the samples go on or are skipped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaSlice, CudaStream, sys};
use serde_json::json;
use tracing_spec_decode::cuda::DeviceCounters;
use tracing_spec_decode::source::{Busy, CounterSource, Counters, Snapshot, SourceError};

use crate::amounts::{Amounts, Outcome};
use crate::engine::{Batch, K, Random, expect, stream};

const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

fn capture(stream: &Arc<CudaStream>, block: &mut CudaSlice<u8>) -> Result<(), cudarc::driver::DriverError> {
    stream.begin_capture(GLOBAL)?;
    let filled = stream.memset_zeros(block);
    let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0));
    filled.and(ended.map(drop))
}

/// Another thread captures globally, again and again, while this one samples.
pub(crate) fn elsewhere(amounts: Amounts) -> Outcome {
    let sampled = stream()?;
    let counters = DeviceCounters::from_cudarc(&sampled, K)?;
    let mut source = counters.source()?;
    let batch = Batch::random(&sampled, &mut Random::new(3))?;
    sampled.synchronize()?;
    let other = stream()?;
    // SAFETY: one stream, one slice, both used by one thread.
    unsafe { other.context().disable_event_tracking() };
    let mut block = other.alloc_zeros::<u8>(4096)?;
    other.synchronize()?;
    let over = AtomicBool::new(false);
    let (captured, samples) = std::thread::scope(|scope| {
        let capturing = scope.spawn(|| {
            let mut outcome = (0usize, None);
            while outcome.0 < amounts.captures && outcome.1.is_none() {
                match capture(&other, &mut block) {
                    Ok(()) => outcome.0 += 1,
                    Err(error) => outcome.1 = Some(error.0 as u32),
                }
            }
            over.store(true, Ordering::Relaxed);
            outcome
        });
        let mut sample = || -> Result<u64, String> {
            let mut read = Counters::for_layout(source.layout());
            let mut samples = 0;
            while !over.load(Ordering::Relaxed) {
                batch.count(&counters, 2).map_err(|error| error.to_string())?;
                source.start().map_err(|error| error.to_string())?;
                while source.poll(&mut read).map_err(|error| error.to_string())? == Snapshot::Pending {
                    std::thread::yield_now();
                }
                samples += 1;
            }
            Ok(samples)
        };
        let samples = sample();
        (capturing.join(), samples)
    });
    let (whole, broken) = captured.map_err(|_| "the capturing thread panicked")?;
    expect("the code of a capture's failure", broken, None)?;
    Ok(json!({ "global_captures": whole, "samples_meanwhile": samples?, "broken": 0 }))
}

/// The sampled stream itself is captured: each sample is skipped, and nothing of it is in the graph.
pub(crate) fn own(amounts: Amounts) -> Outcome {
    let stream = stream()?;
    let counters = DeviceCounters::from_cudarc(&stream, K)?;
    let mut source = counters.source()?;
    let mut block = stream.alloc_zeros::<u8>(4096)?;
    stream.synchronize()?;
    // SAFETY: one stream, one slice.
    unsafe { stream.context().disable_event_tracking() };
    let captures = amounts.captures.min(100);
    for _ in 0..captures {
        stream.begin_capture(GLOBAL)?;
        stream.memset_zeros(&mut block)?;
        let answer = source.start();
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0))?.ok_or("no graph")?;
        expect("a sample while capturing", answer, Err(SourceError::Busy(Busy::Capturing)))?;
        let mut nodes = 0;
        // SAFETY: the graph lives, and a null list asks for the number only.
        unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &raw mut nodes) }.result()?;
        expect("nodes of the graph", nodes, 1)?;
        graph.launch()?;
    }
    source.start()?;
    stream.synchronize()?;
    Ok(json!({ "captures": captures, "skipped": captures }))
}
