//! Streams, events and blocks are made once per context and used by one source after the other, then given back.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use cudarc::driver::sys;
use sim::{DEVICE_COPY, Engine, KERNEL, TO_HOST, sample, sim};
use tracing_spec_decode::cuda::{CudaError, CudaSource, DeviceCounters, RawParts, Words, release_unused};
use tracing_spec_decode::source::CounterSource;

#[test]
fn one_after_the_other() {
    let sim = sim();
    let engine = Engine::new(0);
    let before = sim.live_handles();

    // The same kit serves every source.
    for round in 1..20i64 {
        let mut source = engine.source();
        engine.set(round, round);
        assert_eq!(sample(&sim, &mut source).accepted, round.unsigned_abs());
    }
    assert_eq!((sim.live("stream"), sim.live("event") - before[1].1, sim.live("pinned")), (2, 2, 1));

    // One whose copy is in flight serves nobody, and holds on to what the copy reads.
    let mut held = engine.source();
    sim.hold(0, TO_HOST);
    held.start().unwrap();
    drop(held);
    assert_eq!(std::sync::Arc::strong_count(&engine.counters), 2);
    let other = engine.source();
    assert_eq!(sim.live("pinned"), 2);
    drop(other);
    assert_eq!(release_unused(), 1);
    sim.release(0, TO_HOST);
    sim.settle();
    assert_eq!(release_unused(), 0);
    assert_eq!(std::sync::Arc::strong_count(&engine.counters), 1);
    assert_eq!(sim.live_handles(), before);

    // Counters are given back with their module, once nobody has them.
    let counters = DeviceCounters::from_cudarc(&engine.stream, 4).unwrap();
    let source = counters.source().unwrap();
    drop(counters);
    assert_eq!((release_unused(), sim.live("module")), (0, 1));
    drop(source);
    sim.settle();
    assert_eq!(release_unused(), 0);
    assert_eq!(sim.live_handles(), before);

    // Nor if a copy of them is in flight when the last owner goes.
    let counters = DeviceCounters::from_cudarc(&engine.stream, 4).unwrap();
    let mut source = counters.source().unwrap();
    sim.settle();
    sim.hold(0, TO_HOST);
    source.start().unwrap();
    drop((counters, source));
    assert_eq!((release_unused(), sim.live("module")), (1, 1));
    sim.release(0, TO_HOST);
    sim.settle();
    let stays = release_unused();
    sim.settle();
    assert_eq!((stays <= 1, release_unused(), sim.live_handles()), (true, 0, before.clone()));

    // Counters made one after the other don't add up.
    for _ in 0..10 {
        drop(DeviceCounters::from_cudarc(&engine.stream, 4).unwrap());
        sim.settle();
    }
    assert_eq!((sim.live("module"), sim.live("device")), (1, 2));
    assert_eq!((release_unused(), sim.live_handles()), (0, before.clone()));

    // A block that the stream still counts into is not freed under it.
    sim.hold(engine.handle(), KERNEL);
    drop(DeviceCounters::from_cudarc(&engine.stream, 4).unwrap());
    assert_eq!((release_unused(), sim.live("module")), (1, 1));
    sim.release(engine.handle(), KERNEL);
    sim.settle();
    assert_eq!((release_unused(), sim.live_handles()), (0, before.clone()));

    // Whatever a constructor fails at, nothing of it stays.
    for function in [
        "cuStreamCreate",
        "cuEventCreate",
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuMemsetD8Async",
        "cuLaunchKernel",
        "cuPointerGetAttribute",
        "cuThreadExchangeStreamCaptureMode",
        "cuCtxGetCurrent",
        "cuDevicePrimaryCtxRetain",
        "cuStreamGetCtx",
    ] {
        for skip in 0..3 {
            engine.context.bind_to_thread().unwrap();
            let address = engine.address();
            sim.fault(function, 2, skip, 1);
            let raw = RawParts {
                device_ptr: address,
                words: 2,
                stream: engine.stream.cu_stream().cast(),
                context: std::ptr::null_mut(),
                ordinal: 0,
            };
            drop(unsafe { CudaSource::from_raw_parts(raw, Engine::words(), None) });
            drop(unsafe { DeviceCounters::new(raw.stream, raw.context, 0, 4, None) });
            sim.heal();
            sim.settle();
            assert_eq!((release_unused(), sim.context_depth(), sim.capture_mode()), (0, 1, 0), "{function} {skip}");
            assert_eq!(sim.live_handles(), before, "{function} {skip}");
        }
    }
    assert_eq!(sim.misuse(), "");

    with_events_that_measure(&sim, &engine);
    what_is_no_block_of_counters(&engine);
    in_a_context_that_is_not_primary(&sim);
    whose_start_failed_half_way(&sim, &engine);
}

/// They serve a source that measures nothing as well, and are given back with the rest.
fn with_events_that_measure(sim: &sim::Sim, engine: &Engine) {
    let before = sim.live_handles();
    let events = || sim.live("event") - before[1].1;
    drop(engine.source().with_gpu_time().unwrap());
    assert_eq!(events(), 2 + 6);
    let mut source = engine.source();
    assert!(!source.times_steps());
    sample(sim, &mut source);
    assert_eq!((source.gpu_times(), sim.calls(0, "cuEventElapsedTime_v2")), (None, 0));
    let source = source.with_gpu_time().unwrap();
    assert_eq!((source.times_steps(), events()), (true, 2 + 6));
    drop(source);
    assert_eq!((release_unused(), sim.live_handles(), sim.misuse().as_str()), (0, before, ""));
}

/// The engine's stream still copies into the snapshot when the source goes, and ours knows nothing of it.
fn whose_start_failed_half_way(sim: &sim::Sim, engine: &Engine) {
    engine.context.bind_to_thread().unwrap();
    sim.settle();
    release_unused();
    for (times, stays_for_ever) in [(1, 0), (sim::FOR_EVER, 1)] {
        let mut source = engine.source();
        sim.hold(engine.handle(), DEVICE_COPY);
        sim.fault("cuEventRecord", 2, 0, times);
        source.start().unwrap_err();
        drop(source);
        sim.heal();
        assert_eq!(release_unused(), 1, "the snapshot is not freed under the copy");
        sim.release(engine.handle(), DEVICE_COPY);
        sim.settle();
        // Where the driver refused to tie the streams together, nobody can say when: it is never freed.
        assert_eq!(release_unused(), stays_for_ever);
        assert_eq!(sim.misuse(), "");
    }
}

fn what_is_no_block_of_counters(engine: &Engine) {
    let good = RawParts {
        device_ptr: engine.address(),
        words: 2,
        stream: engine.stream.cu_stream().cast(),
        context: engine.context.cu_ctx().cast(),
        ordinal: 0,
    };
    let pinned = unsafe { cudarc::driver::result::malloc_host(64, 0) }.unwrap() as u64;
    let host = Box::new(0i64);
    let words = Engine::words();
    let cases = [
        (RawParts { device_ptr: good.device_ptr + 4, ..good }, words.clone(), "aligned"),
        (RawParts { device_ptr: 0, ..good }, words.clone(), "null"),
        (RawParts { words: 0, ..good }, Words::accepted_at(0), "beyond"),
        (RawParts { words: 3, ..good }, words.clone(), "allocation"),
        (RawParts { words: usize::MAX, ..good }, words.clone(), "too many"),
        (RawParts { device_ptr: pinned, ..good }, words.clone(), "device memory"),
        (RawParts { device_ptr: &raw const *host as u64, ..good }, words.clone(), "no memory that CUDA knows"),
        (good, Words::accepted_at(2), "beyond the block"),
        (RawParts { ordinal: 1, ..good }, words, "no device 1"),
    ];
    for (raw, words, says) in cases {
        let error = unsafe { CudaSource::from_raw_parts(raw, words, None) }.map(drop).unwrap_err();
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    unsafe { cudarc::driver::result::free_host(pinned as *mut std::ffi::c_void) }.unwrap();
}

/// Nothing can hold such a context, so nothing of it is kept.
fn in_a_context_that_is_not_primary(sim: &sim::Sim) {
    let context = sim.create_context();
    let mut stream = std::ptr::null_mut();
    unsafe { sys::cuStreamCreate(&raw mut stream, 1) }.result().unwrap();
    let (pinned, events) = (sim.live("pinned"), sim.live("event"));
    let primary = cudarc::driver::CudaContext::new(0).unwrap();
    unsafe { sys::cuCtxSetCurrent(context) }.result().unwrap();
    let counters = unsafe { DeviceCounters::new(stream.cast(), context.cast(), 0, 2, None) }.unwrap();
    let mut source = counters.source().unwrap();
    assert_eq!(sample(sim, &mut source).drafts, 0);
    drop((source, counters));
    // The block itself may still have been in use: then it is left to the context's own end.
    assert_eq!((sim.live("pinned"), sim.live("event") <= events + 1), (pinned, true));
    let mut raw =
        RawParts { device_ptr: 8, words: 1, stream: stream.cast(), context: primary.cu_ctx().cast(), ordinal: 0 };
    let error = unsafe { CudaSource::from_raw_parts(raw, Words::accepted_at(0), None) }.map(drop).unwrap_err();
    assert!(matches!(error, CudaError::Invalid(what) if what.contains("another context")));
    raw.context = std::ptr::null_mut();
    unsafe { CudaSource::from_raw_parts(raw, Words::accepted_at(0), None) }.map(drop).unwrap_err();
    unsafe { sys::cuCtxDestroy_v2(context) }.result().unwrap();
    assert_eq!(sim.misuse(), "");
}
