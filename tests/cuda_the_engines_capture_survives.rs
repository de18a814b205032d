//! The engine's capture survives samples that are asked for while it runs, on the capturing thread and on another.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use std::sync::Arc;

use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use cudarc::driver::{CudaStream, result};
use sim::{Engine, FOR_EVER, Sim, TO_HOST, sample, sim};
use tracing_spec_decode::cuda::{CudaError, CudaSource, DeviceCounters};
use tracing_spec_decode::source::{Busy, CounterSource, Counters, Snapshot, SourceError};

const MODES: [Mode; 3] = [
    Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

/// Begins a capture with some work in it.
fn begin(stream: &CudaStream, mode: Mode, block: u64) {
    stream.begin_capture(mode).unwrap();
    unsafe { result::memset_d8_async(block, 0, 8, stream.cu_stream()) }.unwrap();
}

fn end(stream: &Arc<CudaStream>) {
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().expect("the capture is whole");
    let mut nodes = 0;
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &raw mut nodes) }.result().unwrap();
    assert_eq!(nodes, 1, "nothing of ours is in it");
}

#[test]
fn while_the_engines_own_stream_captures_samples_are_skipped() {
    let sim = sim();
    let engine = Engine::new(0);
    let mut source = engine.source();
    for mode in MODES {
        begin(&engine.stream, mode, engine.address());
        assert_eq!(source.start(), Err(SourceError::Busy(Busy::Capturing)));
        let other = std::thread::scope(|scope| scope.spawn(|| source.start()).join().unwrap());
        assert_eq!(other, Err(SourceError::Busy(Busy::Capturing)));
        let made = CudaSource::from_cudarc(engine.counters.clone(), engine.stream.clone(), Engine::words());
        assert_eq!(made.map(drop), Err(CudaError::Capturing));
        assert_eq!(DeviceCounters::from_cudarc(&engine.stream, 4).map(drop), Err(CudaError::Capturing));
        end(&engine.stream);
    }
    engine.set(5, 6);
    assert_eq!(sample(&sim, &mut source).accepted, 5);
    assert_eq!(sim.misuse(), "");
}

#[test]
fn while_another_stream_captures_globally_samples_go_on() {
    let sim = sim();
    sim.be_strict();
    let engine = Engine::new(0);
    let other = Engine::new(0);
    let mut source = engine.source();
    engine.set(5, 6);
    sim.settle();
    for mode in MODES {
        begin(&other.stream, mode, other.address());
        on_both_threads(&sim, &mut source);
        // A whole life of a source too: attach, drop, another.
        drop(engine.source());
        end(&other.stream);
    }
    assert_eq!(sim.misuse(), "");
}

fn on_both_threads(sim: &Sim, source: &mut CudaSource) {
    assert_eq!(sample(sim, source).accepted, 5);
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(sample(sim, source).accepted, 5));
    });
}

#[test]
fn a_capture_that_begins_while_a_copy_is_in_flight_goes_on() {
    let sim = sim();
    let engine = Engine::new(0);
    let mut source = engine.source();
    engine.set(5, 6);
    sim.hold(0, TO_HOST);
    source.start().unwrap();
    let mut counters = Counters::for_layout(source.layout());
    for mode in MODES {
        begin(&engine.stream, mode, engine.address());
        assert_eq!(source.poll(&mut counters), Ok(Snapshot::Pending));
        let other = std::thread::scope(|scope| scope.spawn(|| source.poll(&mut counters)).join().unwrap());
        assert_eq!(other, Ok(Snapshot::Pending));
        end(&engine.stream);
    }
    sim.release(0, TO_HOST);
    sim.settle();
    assert_eq!(source.poll(&mut counters), Ok(Snapshot::Landed));
    assert_eq!(counters.accepted, 5);
}

#[test]
fn an_error_within_a_capture_of_another_stream_leaves_it_whole() {
    let sim = sim();
    let engine = Engine::new(0);
    let other = Engine::new(0);
    let mut source = engine.source();
    begin(&other.stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, other.address());
    sim.fault("cuEventQuery", 2, 0, FOR_EVER);
    source.start().unwrap();
    sim.settle();
    let mut counters = Counters::for_layout(source.layout());
    source.poll(&mut counters).unwrap_err();
    assert_eq!(sim.capture_mode(), 0);
    end(&other.stream);
}

/// The counterpart: without the guard's mode the same query does break a global capture.
#[test]
fn a_query_without_the_guard_would_have_broken_it() {
    let _sim = sim();
    let engine = Engine::new(0);
    let event = engine.context.new_event(None).unwrap();
    event.record(&engine.stream).unwrap();
    let other = Engine::new(0);
    begin(&other.stream, Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, other.address());
    let query = std::thread::scope(|scope| {
        let ask = || {
            engine.context.bind_to_thread().unwrap();
            unsafe { sys::cuEventQuery(event.cu_event()) as u32 }
        };
        scope.spawn(ask).join().unwrap()
    });
    assert_eq!(query, 900);
    let ended = unsafe { result::stream::end_capture(other.stream.cu_stream()) };
    assert_eq!(ended.map(|_| ()).map_err(|error| error.0 as u32), Err(901));
}

#[test]
fn the_legacy_stream_is_skipped_while_a_blocking_stream_captures() {
    let _sim = sim();
    let engine = Engine::new(0);
    let blocking = unsafe {
        let mut stream = std::ptr::null_mut();
        sys::cuStreamCreate(&raw mut stream, 0).result().unwrap();
        engine.context.wrap_borrowed_stream(stream)
    };
    let legacy = engine.context.default_stream();
    let mut source = CudaSource::from_cudarc(engine.counters.clone(), legacy, Engine::words()).unwrap();
    begin(&blocking, Mode::CU_STREAM_CAPTURE_MODE_RELAXED, engine.address());
    assert_eq!(source.start(), Err(SourceError::Busy(Busy::Capturing)));
    end(&blocking);
    assert_eq!(source.start(), Ok(()));
}
