//! A sampled step makes eleven driver calls on the engine's thread, a poll at most six, and none of them waits.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs)]

mod sim;

use sim::{Engine, TO_HOST, sim};
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

const START: [&str; 11] = [
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
    "cuMemcpyDtoDAsync_v2",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuMemcpyDtoHAsync_v2",
    "cuEventRecord",
    "cuThreadExchangeStreamCaptureMode",
    "cuCtxPopCurrent_v2",
];

const POLL: [&str; 6] = [
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventQuery",
    "cuThreadExchangeStreamCaptureMode",
    "cuCtxPopCurrent_v2",
];

#[test]
fn on_a_thread_without_a_context() {
    let sim = sim();
    let engine = Engine::new(0);
    let mut source = engine.source();
    engine.set(7, 9);
    sim.hold(0, TO_HOST);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut counters = Counters::for_layout(source.layout());
            let (started, calls) = sim.calls_of(|| source.start());
            assert_eq!((started, calls), (Ok(()), START.map(str::to_owned).to_vec()));
            let (pending, calls) = sim.calls_of(|| source.poll(&mut counters));
            assert_eq!((pending, calls), (Ok(Snapshot::Pending), POLL.map(str::to_owned).to_vec()));
            sim.release(0, TO_HOST);
            sim.settle();
            let (landed, calls) = sim.calls_of(|| source.poll(&mut counters));
            assert_eq!((landed, calls), (Ok(Snapshot::Landed), POLL.map(str::to_owned).to_vec()));
            assert_eq!((counters.accepted, counters.emitted), (7, 9));
        });
    });
    assert_eq!(sim.misuse(), "");
}

#[test]
fn on_the_engines_thread_nothing_is_pushed() {
    let sim = sim();
    let engine = Engine::new(0);
    let mut source = engine.source();
    engine.context.bind_to_thread().unwrap();
    let (started, calls) = sim.calls_of(|| source.start());
    assert_eq!((started, calls.len()), (Ok(()), 9));
    sim.settle();
    let mut counters = Counters::for_layout(source.layout());
    let (landed, calls) = sim.calls_of(|| source.poll(&mut counters));
    assert_eq!((landed, calls.len()), (Ok(Snapshot::Landed), 4));
}
