//! Steps, sampled through the layer from counters on the device: exact totals, and no driver call but those of a sample.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;
mod support;

use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use sim::{Engine, Sim, TO_HOST, sim, upload};
use support::{Stack, collections, of_engine, of_position};
use tracing_spec_decode::cuda::{DeviceCounters, Lengths};
use tracing_spec_decode::{SourceState, step_span};

fn lengths(engine: &Engine) -> Lengths {
    Lengths {
        drafted: upload(&engine.stream, &[4i32, 4]),
        accepted: upload(&engine.stream, &[4i32, 1]),
        emitted: upload(&engine.stream, &[5i32, 2]),
        batch: 2,
    }
}

/// The driver calls of the layer in one step in which the engine makes none.
fn calls_of_a_step(sim: &Sim) -> usize {
    let step = || {
        let span = step_span!(num_spec_tokens = 4);
        span.in_scope(|| ());
    };
    sim.calls_of(step).1.len()
}

#[test]
fn counted_by_our_kernel() {
    let sim = sim();
    let engine = Engine::new(0);
    let stack = Stack::new();
    let counters = DeviceCounters::from_cudarc(&engine.stream, 4).unwrap();
    let attached = stack.handle.attach("0", counters.source().unwrap()).unwrap();
    let lengths = lengths(&engine);
    for step in 0..100 {
        stack.pass(1_000);
        let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
        span.in_scope(|| unsafe { counters.count_lengths(lengths) }).unwrap();
        drop(span);
        if step % 3 == 0 {
            sim.settle();
        }
    }
    stack.flush();
    let points = stack.collect();
    let expected = [("drafts", 200.0), ("draft_tokens", 800.0), ("accepted_tokens", 500.0), ("emitted_tokens", 700.0)];
    for (name, total) in expected {
        assert_eq!(points[&of_engine(name)], total, "{name}");
    }
    for (position, accepted) in [200.0, 100.0, 100.0, 100.0].into_iter().enumerate() {
        let point = |name: &str| points[&of_position(name, position)];
        let both = (point("accepted_tokens_per_position"), point("draft_tokens_per_position"));
        assert_eq!(both, (accepted, 200.0));
    }
    drop(attached);
    assert_eq!(stack.collect()[&of_engine("accepted_tokens")], 500.0, "detached, and still there");
    assert_eq!(sim.misuse(), "");
}

#[test]
fn while_the_stream_is_captured_samples_are_skipped_and_counted() {
    let sim = sim();
    let engine = Engine::new(0);
    let stack = Stack::new();
    let counters = DeviceCounters::from_cudarc(&engine.stream, 4).unwrap();
    let _attached = stack.handle.attach("0", counters.source().unwrap()).unwrap();
    let lengths = lengths(&engine);
    let step = || {
        stack.pass(6_000);
        let span = step_span!(num_spec_tokens = 4);
        span.in_scope(|| unsafe { counters.count_lengths(lengths) }).unwrap();
    };
    // The capture ends on the thread on which steps end, and they end on another one too.
    engine.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    step();
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    std::thread::scope(|scope| {
        scope.spawn(|| tracing::dispatcher::with_default(&dispatch, step));
    });
    stack.handle.flush(Duration::from_millis(5)).unwrap_err();
    let graph = engine.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    stack.flush();
    let points = stack.collect();
    assert!(collections(&points, "skipped", Some("capturing")) >= 2.0, "{points:#?}");
    assert_eq!(points[&of_engine("drafts")], 12.0, "two launches in the graph, replayed three times");
    assert_eq!(sim.misuse(), "");
}

#[test]
fn a_step_that_is_not_sampled_makes_no_call() {
    let sim = sim();
    let engine = Engine::new(0);
    let stack = Stack::new();
    let _attached = stack.handle.attach("0", engine.source()).unwrap();
    engine.context.bind_to_thread().unwrap();
    assert_eq!((calls_of_a_step(&sim), calls_of_a_step(&sim)), (0, 0), "nothing is due");
    stack.pass(5_000);
    assert_eq!(calls_of_a_step(&sim), 9, "a sample");
    sim.settle();
    assert_eq!(calls_of_a_step(&sim), 4, "its poll");
    assert_eq!(calls_of_a_step(&sim), 0);
}

#[test]
fn a_copy_that_never_lands_costs_one_poll_per_interval() {
    let sim = sim();
    let engine = Engine::new(0);
    let stack = Stack::new();
    let attached = stack.handle.attach("0", engine.source()).unwrap();
    engine.set(3, 4);
    sim.settle();
    stack.pass(5_000);
    sim.hold(0, TO_HOST);
    calls_of_a_step(&sim);
    // Young, it is asked for at each step; from the first interval on, once in each.
    stack.pass(6_000);
    let me = sim.thread();
    let before = sim.calls(me, "cuEventQuery");
    for _ in 0..1_000 {
        stack.pass(50);
        calls_of_a_step(&sim);
    }
    let queries = sim.calls(me, "cuEventQuery") - before;
    assert!((9..=12).contains(&queries), "{queries} queries in 10 intervals");
    assert!(matches!(stack.handle.status("0").source, SourceState::InFlight(age) if age >= Duration::from_secs(50)));
    stack.handle.flush(Duration::from_millis(20)).unwrap_err();
    sim.release(0, TO_HOST);
    stack.flush();
    assert_eq!(stack.collect()[&of_engine("accepted_tokens")], 3.0);
    drop(attached);
}

#[test]
fn two_engines_on_two_devices_keep_apart() {
    let sim = sim();
    sim.set_devices(2);
    let engines = [Engine::new(0), Engine::new(1)];
    let stack = Stack::new();
    let _attached = [0, 1].map(|engine| stack.handle.attach(&engine.to_string(), engines[engine].source()).unwrap());
    for step in 1..=40i64 {
        stack.pass(2_000);
        for (name, engine) in [0i64, 1].into_iter().zip(&engines) {
            let span = step_span!(num_spec_tokens = 4, num_drafts = 1, engine = name);
            span.in_scope(|| engine.set(step * (2 + name), step * (3 + name)));
        }
    }
    stack.flush();
    let points = stack.collect();
    for (engine, accepted) in [(0, 80.0), (1, 120.0)] {
        assert_eq!(points[&format!("spec_decode.accepted_tokens{{spec_decode.engine={engine}}}")], accepted);
        assert_eq!(points[&format!("spec_decode.draft_tokens{{spec_decode.engine={engine}}}")], 160.0);
    }
    assert_eq!(sim.misuse(), "");
}

#[test]
fn a_word_below_zero_is_refused_and_a_falling_one_is_a_restart() {
    let sim = sim();
    let engine = Engine::new(0);
    let stack = Stack::new();
    engine.set(100, 120);
    let _attached = stack.handle.attach("0", engine.source()).unwrap();
    engine.set(130, 160);
    stack.flush();
    engine.set(-1, i64::MIN);
    stack.handle.flush(Duration::from_secs(5)).unwrap_err();
    assert_eq!(stack.collect()[&of_engine("accepted_tokens")], 30.0);
    engine.set(140, 170);
    stack.pass(400_000);
    stack.flush();
    assert_eq!(stack.collect()[&of_engine("accepted_tokens")], 40.0, "nothing was lost, nothing counted twice");
    engine.set(5, 6);
    stack.flush();
    assert_eq!(stack.collect()[&of_engine("accepted_tokens")], 45.0);
    assert_eq!(sim.misuse(), "");
}
