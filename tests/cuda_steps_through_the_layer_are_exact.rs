//! Steps, sampled through the layer from counters on the device: exact totals, and no driver call but those of a sample.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;
mod support;

use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use sim::{Engine, Sim, TO_HOST, sim, upload};
use support::{Exported, of_engine};
use tracing_spec_decode::cuda::{DeviceCounters, Lengths};
use tracing_spec_decode::{Handle, SourceState, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

/// A stack with the layer, its clock set by hand.
fn stack() -> (Exported, Handle, std::sync::Arc<quanta::Mock>, tracing::subscriber::DefaultGuard) {
    let exported = Exported::cumulative();
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder()
        .with_interval(Duration::from_secs(5))
        .with_clock(clock)
        .with_meter_provider(&exported.provider)
        .build()
        .unwrap();
    let default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    (exported, handle, mock, default)
}

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
    let (exported, handle, mock, _default) = stack();
    let counters = DeviceCounters::from_cudarc(&engine.stream, 4).unwrap();
    let attached = handle.attach("0", counters.source().unwrap()).unwrap();
    let lengths = lengths(&engine);
    for step in 0..100 {
        mock.increment(Duration::from_secs(1));
        let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
        span.in_scope(|| unsafe { counters.count_lengths(lengths) }).unwrap();
        drop(span);
        if step % 3 == 0 {
            sim.settle();
        }
    }
    handle.flush(Duration::from_secs(5)).unwrap();
    let points = exported.collect();
    let expected = [("drafts", 200.0), ("draft_tokens", 800.0), ("accepted_tokens", 500.0), ("emitted_tokens", 700.0)];
    for (name, total) in expected {
        assert_eq!(points[&of_engine(name)], total, "{name}");
    }
    for (position, accepted) in [200.0, 100.0, 100.0, 100.0].into_iter().enumerate() {
        let name =
            |name| format!("spec_decode.{name}_per_position{{spec_decode.engine=0,spec_decode.position={position}}}");
        assert_eq!((points[&name("accepted_tokens")], points[&name("draft_tokens")]), (accepted, 200.0));
    }
    drop(attached);
    assert_eq!(exported.collect()[&of_engine("accepted_tokens")], 500.0, "detached, and still there");
    assert_eq!(sim.misuse(), "");
}

#[test]
fn while_the_stream_is_captured_samples_are_skipped_and_counted() {
    let sim = sim();
    let engine = Engine::new(0);
    let (exported, handle, mock, _default) = stack();
    let counters = DeviceCounters::from_cudarc(&engine.stream, 4).unwrap();
    let _attached = handle.attach("0", counters.source().unwrap()).unwrap();
    let lengths = lengths(&engine);
    let step = || {
        mock.increment(Duration::from_secs(6));
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
    handle.flush(Duration::from_millis(5)).unwrap_err();
    let graph = engine.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    for _ in 0..3 {
        graph.launch().unwrap();
    }
    handle.flush(Duration::from_secs(5)).unwrap();
    let points = exported.collect();
    let skipped =
        "spec_decode.collections{error.type=capturing,spec_decode.collection.outcome=skipped,spec_decode.engine=0}";
    assert!(points[skipped] >= 2.0, "{points:#?}");
    assert_eq!(points[&of_engine("drafts")], 12.0, "two launches in the graph, replayed three times");
    assert_eq!(sim.misuse(), "");
}

#[test]
fn a_step_that_is_not_sampled_makes_no_call() {
    let sim = sim();
    let engine = Engine::new(0);
    let (_exported, handle, mock, _default) = stack();
    let _attached = handle.attach("0", engine.source()).unwrap();
    engine.context.bind_to_thread().unwrap();
    assert_eq!((calls_of_a_step(&sim), calls_of_a_step(&sim)), (0, 0), "nothing is due");
    mock.increment(Duration::from_secs(5));
    assert_eq!(calls_of_a_step(&sim), 9, "a sample");
    sim.settle();
    assert_eq!(calls_of_a_step(&sim), 4, "its poll");
    assert_eq!(calls_of_a_step(&sim), 0);
}

#[test]
fn a_copy_that_never_lands_costs_one_poll_per_interval() {
    let sim = sim();
    let engine = Engine::new(0);
    let (exported, handle, mock, _default) = stack();
    let attached = handle.attach("0", engine.source()).unwrap();
    engine.set(3, 4);
    sim.settle();
    mock.increment(Duration::from_secs(5));
    sim.hold(0, TO_HOST);
    calls_of_a_step(&sim);
    // Young, it is asked for at each step; from the first interval on, once in each.
    mock.increment(Duration::from_secs(6));
    let me = sim.thread();
    let before = sim.calls(me, "cuEventQuery");
    for _ in 0..1_000 {
        mock.increment(Duration::from_millis(50));
        calls_of_a_step(&sim);
    }
    let queries = sim.calls(me, "cuEventQuery") - before;
    assert!((9..=12).contains(&queries), "{queries} queries in 10 intervals");
    assert!(matches!(handle.status("0").source, SourceState::InFlight(age) if age >= Duration::from_secs(50)));
    handle.flush(Duration::from_millis(20)).unwrap_err();
    sim.release(0, TO_HOST);
    handle.flush(Duration::from_secs(5)).unwrap();
    assert_eq!(exported.collect()[&of_engine("accepted_tokens")], 3.0);
    drop(attached);
}

#[test]
fn two_engines_on_two_devices_keep_apart() {
    let sim = sim();
    sim.set_devices(2);
    let engines = [Engine::new(0), Engine::new(1)];
    let (exported, handle, mock, _default) = stack();
    let _attached = [0, 1].map(|engine| handle.attach(&engine.to_string(), engines[engine].source()).unwrap());
    for step in 1..=40i64 {
        mock.increment(Duration::from_secs(2));
        for (name, engine) in [0i64, 1].into_iter().zip(&engines) {
            let span = step_span!(num_spec_tokens = 4, num_drafts = 1, engine = name);
            span.in_scope(|| engine.set(step * (2 + name), step * (3 + name)));
        }
    }
    handle.flush(Duration::from_secs(5)).unwrap();
    let points = exported.collect();
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
    let (exported, handle, mock, _default) = stack();
    engine.set(100, 120);
    let _attached = handle.attach("0", engine.source()).unwrap();
    engine.set(130, 160);
    handle.flush(Duration::from_secs(5)).unwrap();
    engine.set(-1, i64::MIN);
    handle.flush(Duration::from_secs(5)).unwrap_err();
    assert_eq!(exported.collect()[&of_engine("accepted_tokens")], 30.0);
    engine.set(140, 170);
    mock.increment(Duration::from_secs(400));
    handle.flush(Duration::from_secs(5)).unwrap();
    assert_eq!(exported.collect()[&of_engine("accepted_tokens")], 40.0, "nothing was lost, nothing counted twice");
    engine.set(5, 6);
    handle.flush(Duration::from_secs(5)).unwrap();
    assert_eq!(exported.collect()[&of_engine("accepted_tokens")], 45.0);
    assert_eq!(sim.misuse(), "");
}
