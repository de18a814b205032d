//! What each driver call of the path costs on the host, what a sample costs, and what it adds to the engine's stream;
//! beside them the naive way, and the sequence of vLLM's first collector.

use std::error::Error;

use cudarc::driver::{CudaStream, result, sys};
use serde_json::{Map, Value, json};
use tracing_spec_decode::cuda::DeviceCounters;
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

use crate::amounts::{Amounts, Outcome};
use crate::engine::{Batch, K, Random, stream};
use crate::timing::Times;

pub(crate) fn measure(amounts: Amounts) -> Outcome {
    Ok(json!({ "calls": calls(amounts)?, "samples": samples(amounts)?, "added_to_the_stream": added(amounts)? }))
}

/// Each call by itself, on a stream that is waited for now and then.
fn calls(amounts: Amounts) -> Outcome {
    let (engine, side) = (stream()?, stream()?);
    let block = engine.alloc_zeros::<i64>(64)?;
    let snapshot = engine.alloc_zeros::<i64>(64)?;
    let address = |slice: &cudarc::driver::CudaSlice<i64>| {
        use cudarc::driver::DevicePtr;
        slice.device_ptr(&engine).0
    };
    let (block_at, snapshot_at) = (address(&block), address(&snapshot));
    let context = engine.context().clone();
    context.bind_to_thread()?;
    let event = context.new_event(None)?;
    // SAFETY: freed below, after both streams were waited for.
    let pinned = unsafe { result::malloc_host(512, 0) }?;
    let (stream, side_stream, event_handle) = (engine.cu_stream(), side.cu_stream(), event.cu_event());
    let bytes = 64 * 8;
    let mut current = std::ptr::null_mut();
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    let mut report = Map::new();
    // SAFETY: every handle and block here lives until the streams have been waited for, below.
    unsafe {
        let mut time = |name: &str, call: &mut dyn FnMut() -> sys::CUresult| -> Result<(), Box<dyn Error>> {
            let mut times = Times::default();
            for round in 0..amounts.calls {
                times.take(&mut *call).result()?;
                if round % 500 == 499 {
                    engine.synchronize()?;
                    side.synchronize()?;
                }
            }
            engine.synchronize()?;
            side.synchronize()?;
            report.insert(name.into(), times.json());
            Ok(())
        };
        time("cuCtxGetCurrent", &mut || sys::cuCtxGetCurrent(&raw mut current))?;
        time("cuCtxPushCurrent_and_pop", &mut || {
            let pushed = sys::cuCtxPushCurrent_v2(context.cu_ctx());
            let mut popped = std::ptr::null_mut();
            if pushed == sys::CUresult::CUDA_SUCCESS { sys::cuCtxPopCurrent_v2(&raw mut popped) } else { pushed }
        })?;
        time("cuThreadExchangeStreamCaptureMode", &mut || sys::cuThreadExchangeStreamCaptureMode(&raw mut mode))?;
        time("cuStreamIsCapturing", &mut || sys::cuStreamIsCapturing(stream, &raw mut status))?;
        time("cuMemcpyDtoDAsync", &mut || sys::cuMemcpyDtoDAsync_v2(snapshot_at, block_at, bytes, stream))?;
        time("cuEventRecord", &mut || sys::cuEventRecord(event_handle, stream))?;
        time("cuStreamWaitEvent", &mut || sys::cuStreamWaitEvent(side_stream, event_handle, 0))?;
        time("cuMemcpyDtoHAsync", &mut || sys::cuMemcpyDtoHAsync_v2(pinned, snapshot_at, bytes, side_stream))?;
        time("cuEventQuery_ready", &mut || sys::cuEventQuery(event_handle))?;
        result::free_host(pinned)?;
    }
    Ok(Value::Object(report))
}

/// A step's launch with a sample behind it, ours and the two others.
fn samples(amounts: Amounts) -> Outcome {
    let stream = stream()?;
    let counters = DeviceCounters::from_cudarc(&stream, K)?;
    let mut source = counters.source()?;
    let batch = Batch::random(&stream, &mut Random::new(5))?;
    stream.synchronize()?;
    let mut read = Counters::for_layout(source.layout());
    let (mut launch, mut start, mut poll) = (Times::default(), Times::default(), Times::default());
    for _ in 0..amounts.calls {
        launch.take(|| batch.count(&counters, 2))?;
        start.take(|| source.start())?;
        stream.synchronize()?;
        while poll.take(|| source.poll(&mut read))? == Snapshot::Pending {}
    }
    let naive = naive(amounts, &stream, &counters, &batch)?;
    let first_collector = first_collector(amounts, &stream, &counters, &batch)?;
    Ok(json!({
        "launch_of_the_count": launch.json(),
        "start": start.json(),
        "poll": poll.json(),
        "synchronous_copy_instead": naive,
        "first_vllm_collector_instead": first_collector,
    }))
}

fn naive(amounts: Amounts, stream: &CudaStream, counters: &DeviceCounters, batch: &Batch) -> Outcome {
    let mut times = Times::default();
    let mut words = [0i64; 4];
    for _ in 0..amounts.calls.min(2_000) {
        batch.count(counters, 2)?;
        times.take(|| {
            // SAFETY: the block has more than four words, and they are waited for.
            unsafe { result::memcpy_dtoh_async(&mut words, counters.device_ptr(), stream.cu_stream()) }?;
            stream.synchronize()
        })?;
    }
    Ok(times.json())
}

/// The side stream waits for the engine's, copies two words, an event is recorded; the next step synchronises on it.
fn first_collector(amounts: Amounts, engine: &CudaStream, counters: &DeviceCounters, batch: &Batch) -> Outcome {
    let side = engine.context().new_stream()?;
    let (produced, done) = (engine.context().new_event(None)?, engine.context().new_event(None)?);
    // SAFETY: freed below, after the side stream was waited for.
    let pinned = unsafe { result::malloc_host(16, 0) }?;
    let (mut begin, mut end) = (Times::default(), Times::default());
    for _ in 0..amounts.calls.min(2_000) {
        batch.count(counters, 2)?;
        begin.take(|| -> Result<(), cudarc::driver::DriverError> {
            produced.record(engine)?;
            side.wait(&produced)?;
            for word in 0..2u64 {
                let from = counters.device_ptr() + 8 * (2 + word);
                // SAFETY: word and place lie in their blocks.
                let code =
                    unsafe { sys::cuMemcpyDtoHAsync_v2(pinned.byte_add(8 * word as usize), from, 8, side.cu_stream()) };
                code.result()?;
            }
            done.record(&side)
        })?;
        end.take(|| done.synchronize())?;
    }
    side.synchronize()?;
    // SAFETY: allocated above, and no copy into it is left.
    unsafe { result::free_host(pinned) }?;
    Ok(json!({ "begin": begin.json(), "synchronize_at_the_next_step": end.json() }))
}

/// What a sample at every step adds to the engine's stream, by the device's own clock.
fn added(amounts: Amounts) -> Outcome {
    let stream = stream()?;
    let counters = DeviceCounters::from_cudarc(&stream, K)?;
    let mut source = counters.source()?;
    let batch = Batch::random(&stream, &mut Random::new(6))?;
    stream.synchronize()?;
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let mut read = Counters::for_layout(source.layout());
    let mut run = |is_sampled: bool| -> Result<f64, Box<dyn Error>> {
        let mut milliseconds = 0.0;
        for _ in 0..amounts.calls.min(2_000) {
            let start = stream.record_event(timed)?;
            batch.count(&counters, 2)?;
            if is_sampled {
                source.start()?;
            }
            batch.count(&counters, 2)?;
            let end = stream.record_event(timed)?;
            milliseconds += f64::from(start.elapsed_ms(&end)?);
            while is_sampled && source.poll(&mut read)? == Snapshot::Pending {}
        }
        Ok(milliseconds * 1e6 / amounts.calls.min(2_000) as f64)
    };
    let (plain, sampled) = (run(false)?, run(true)?);
    Ok(json!({ "two_launches_ns": plain, "with_a_sample_between_ns": sampled, "difference_ns": sampled - plain }))
}
