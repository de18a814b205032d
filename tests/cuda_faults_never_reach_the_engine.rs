//! Every driver function of the path fails in every way: steps go on, nothing waits, and the totals are exact again
//! once the driver is well.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;
mod support;

use std::time::Duration;

use cudarc::driver::sys;
use sim::{ALL, Engine, FOR_EVER, Sim, count_on_device, sim};
use support::{Points, Stack, collections, of_engine, of_steps};
use tracing_spec_decode::cuda::release_unused;
use tracing_spec_decode::{SourceState, step_span};

/// The functions of the path, and whether the second try that the way back makes mends a single error.
const PATH: [(&str, bool); 10] = [
    ("cuCtxGetCurrent", false),
    ("cuCtxPushCurrent_v2", false),
    ("cuThreadExchangeStreamCaptureMode", false),
    ("cuStreamIsCapturing", false),
    ("cuMemcpyDtoDAsync_v2", false),
    ("cuEventRecord", false),
    ("cuStreamWaitEvent", false),
    ("cuMemcpyDtoHAsync_v2", false),
    ("cuEventQuery", false),
    ("cuCtxPopCurrent_v2", true),
];

/// What would wait, or allocate.
const FORBIDDEN: [&str; 12] = [
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuModuleLoadData",
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Once,
    /// The call behind the first: for the functions that the path calls twice.
    SecondOnce,
    ForEver,
    Sticky,
    Deinitialised,
    NeverCompletes,
}

#[test]
fn whichever_fails_and_however() {
    for (function, mends) in PATH {
        for fault in [Fault::Once, Fault::SecondOnce, Fault::ForEver, Fault::Sticky, Fault::Deinitialised] {
            check(function, mends, fault);
        }
    }
    check("", false, Fault::NeverCompletes);
}

fn check(function: &str, mends: bool, fault: Fault) {
    let sim = sim();
    let case = format!("{function} {fault:?}");
    let engine = Engine::new(0);
    let stack = Stack::new();
    let before = sim.live_handles();
    let attached = stack.handle.attach("0", engine.source()).unwrap();
    let block = engine.address();
    // From here on the engine makes no driver call: the faults are the layer's alone.
    unsafe { sys::cuCtxSetCurrent(std::ptr::null_mut()) }.result().unwrap();
    let step = |seconds: u64| {
        stack.pass(1_000 * seconds);
        let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
        span.in_scope(|| count_on_device(block));
        drop(span);
        sim.settle();
    };
    step(6);
    step(1);
    match fault {
        Fault::Once => sim.fault(function, 2, 0, 1),
        Fault::SecondOnce => sim.fault(function, 2, 1, 1),
        Fault::ForEver => sim.fault(function, 999, 0, FOR_EVER),
        Fault::Sticky => sim.fault(function, 700, 0, FOR_EVER),
        Fault::Deinitialised => sim.deinitialise(),
        Fault::NeverCompletes => sim.hold(0, ALL),
    }
    let me = sim.thread();
    let waits = || FORBIDDEN.iter().map(|function| sim.calls(me, function)).sum::<u64>();
    let (waited, queried) = (waits(), sim.calls(me, "cuEventQuery"));
    for _ in 0..20 {
        step(6);
        step(1);
    }
    assert_eq!(waits(), waited, "{case}: nothing waits and nothing allocates");
    if fault == Fault::NeverCompletes {
        let queries = sim.calls(me, "cuEventQuery") - queried;
        assert!((20..=42).contains(&queries), "{case}: {queries} queries in 28 intervals, one or so in each");
        assert!(matches!(stack.handle.status("0").source, SourceState::InFlight(_)));
    }
    let dead = matches!(fault, Fault::Sticky | Fault::Deinitialised);
    assert_eq!(stack.handle.status("0").source == SourceState::Dead, dead, "{case}: {:?}", stack.handle.status("0"));
    recover(&sim);
    if !dead {
        step(400);
        step(1);
        stack.handle.flush(Duration::from_secs(5)).unwrap_or_else(|error| panic!("{case}: {error}"));
    }
    let points = stack.collect();
    assert_eq!(points[&of_steps("steps", true)], 42.0 + 2.0 * f64::from(!dead));
    outcome(&case, &points, mends, fault);
    if !dead {
        let steps = 44.0;
        assert_eq!(points[&of_engine("accepted_tokens")], 3.0 * steps, "{case}");
        assert_eq!(points[&of_engine("emitted_tokens")], 4.0 * steps, "{case}");
        assert_eq!(points[&of_engine("draft_tokens")], 4.0 * steps, "{case}");
    }
    assert_eq!((sim.context_depth() <= 1, sim.capture_mode()), (true, 0), "{case}");
    drop(attached);
    engine.context.bind_to_thread().unwrap();
    sim.settle();
    let stays = release_unused();
    assert_eq!((stays == 0, sim.misuse().as_str()), (true, ""), "{case}");
    assert_eq!(sim.live_handles(), before, "{case}: what was made is given back");
    engine.context.check_err().unwrap();
}

fn recover(sim: &Sim) {
    sim.heal();
    sim.work_again();
    sim.release(0, ALL);
    sim.settle();
}

fn outcome(case: &str, points: &Points, mends: bool, fault: Fault) {
    let driver_errors = collections(points, "failed", Some("driver_error"));
    match fault {
        Fault::Sticky => assert_eq!(collections(points, "lost", Some("device_lost")), 1.0, "{case}: {points:#?}"),
        Fault::Deinitialised => assert_eq!(collections(points, "lost", Some("no_driver")), 1.0, "{case}: {points:#?}"),
        Fault::NeverCompletes => assert!(collections(points, "resolved", None) >= 2.0, "{case}: {points:#?}"),
        // A context that can't be popped stays, and then needs no pop.
        Fault::ForEver if mends => assert_eq!(driver_errors, 1.0, "{case}: {points:#?}"),
        Fault::ForEver => assert!(driver_errors >= 2.0, "{case}: {points:#?}"),
        // Called twice and mended, or not called a second time in that sample.
        Fault::SecondOnce if mends || case.contains("ExchangeStreamCaptureMode") => {}
        Fault::Once if mends => assert_eq!(driver_errors, 0.0, "{case}: {points:#?}"),
        Fault::Once | Fault::SecondOnce => assert_eq!(driver_errors, 1.0, "{case}: {points:#?}"),
    }
}
