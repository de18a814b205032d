//! With a tracer, each copy of a source's counters is a span: child of the step that started it, linked to the step in
//! which it ended, with what it found as attributes and what went wrong as its status.
#![cfg(feature = "otel-trace")]
#![allow(missing_docs)]

mod support;
mod traced;

use std::task::{Context, Waker};

use opentelemetry::trace::{SpanId, Status};
use support::{Device, run};
use traced::{INTERVAL, Traces, attribute, layer_builder, step};
use tracing::{Dispatch, Instrument};
use tracing_spec_decode::source::{Dead, Failed, SourceError};
use tracing_spec_decode::{EngineAttributes, Handle, step_span};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt;

/// Three steps: the copy becomes due in the second, starts at its end, and ends in the third.
fn three_steps(traces: &Traces, mock: &quanta::Mock, handle: &Handle, device: &Device) {
    let _attached = handle.attach("0", device.source()).unwrap();
    step(device);
    mock.increment(INTERVAL);
    step(device);
    assert!(traces.collects().is_empty(), "the copy has not ended");
    step(device);
    handle.flush(INTERVAL).unwrap();
}

fn assert_parent_and_link(traces: &Traces) {
    let (steps, collects) = (traces.steps(), traces.collects());
    let [first, second, third] = &steps[..] else { panic!("{steps:?}") };
    let [collect] = &collects[..] else { panic!("{collects:?}") };
    assert_eq!(collect.parent_span_id, second.span_context.span_id());
    assert_eq!(collect.span_context.trace_id(), second.span_context.trace_id());
    let links: Vec<SpanId> = collect.links.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(links, [third.span_context.span_id()]);
    assert_ne!(first.span_context.trace_id(), second.span_context.trace_id(), "the steps are traces of their own");
    assert!(second.start_time <= collect.start_time && collect.start_time <= collect.end_time);
    assert!(third.start_time <= collect.end_time && collect.end_time <= third.end_time);
}

#[test]
fn in_either_order_of_the_layers_it_has_its_parent_and_its_link() {
    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer());
    let ours_inside = Dispatch::new(tracing_subscriber::registry().with(layer).with(otel));
    tracing::dispatcher::with_default(&ours_inside, || three_steps(&traces, &mock, &handle, &Device::default()));
    assert_parent_and_link(&traces);

    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer());
    let ours_outside = Dispatch::new(tracing_subscriber::registry().with(otel).with(layer));
    tracing::dispatcher::with_default(&ours_outside, || three_steps(&traces, &mock, &handle, &Device::default()));
    assert_parent_and_link(&traces);
}

/// An engine under both layers.
struct Engine {
    traces: Traces,
    mock: std::sync::Arc<quanta::Mock>,
    handle: Handle,
    device: Device,
    _default: tracing::subscriber::DefaultGuard,
}

impl Engine {
    fn new() -> Self {
        let traces = Traces::new();
        let (layer, mock) = layer_builder(&traces);
        let (layer, handle) = layer.build::<Registry>().unwrap();
        let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer());
        let subscriber = tracing_subscriber::registry().with(layer).with(otel);
        let default = tracing::subscriber::set_default(subscriber);
        Self { traces, mock, handle, device: Device::default(), _default: default }
    }

    /// A step that starts a copy.
    fn start_copy(&self) {
        self.mock.increment(INTERVAL);
        step(&self.device);
    }
}

#[test]
fn its_attributes_are_what_the_sample_added() {
    let engine = Engine::new();
    engine.handle.describe("0", EngineAttributes::new().with_model("target")).unwrap();
    let _attached = engine.handle.attach("0", engine.device.source()).unwrap();
    step(&engine.device);
    engine.start_copy();
    step(&engine.device);
    engine.handle.flush(INTERVAL).unwrap();
    let collects = engine.traces.collects();
    let of = |name: &str| attribute(&collects[0], name);
    for (name, value) in [
        ("spec_decode.engine", "0"),
        ("spec_decode.model", "target"),
        ("spec_decode.collection.outcome", "resolved"),
        ("spec_decode.drafts", "4"),
        ("spec_decode.draft_tokens", "16"),
        ("spec_decode.accepted_tokens", "10"),
        ("spec_decode.emitted_tokens", "14"),
        ("spec_decode.num_spec_tokens", "4"),
        ("spec_decode.draft_acceptance_rate", "0.625"),
        ("spec_decode.system_efficiency", "0.7"),
        ("spec_decode.mean_acceptance_length", "3.5"),
    ] {
        assert_eq!(of(name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(of("error.type"), None);
    assert_eq!(collects[0].status, Status::Unset);
}

#[test]
fn a_failure_is_its_status_and_the_next_copy_has_a_span_of_its_own() {
    let engine = Engine::new();
    let _attached = engine.handle.attach("0", engine.device.source()).unwrap();
    engine.device.land_after(9);
    engine.start_copy();
    engine.device.fail_with(Some(SourceError::Failed(Failed::Driver(719))));
    step(&engine.device);
    engine.device.fail_with(None);
    engine.device.land_after(0);
    engine.start_copy();
    step(&engine.device);
    engine.handle.flush(INTERVAL).unwrap();
    let collects = engine.traces.collects();
    let [failed, resolved] = &collects[..] else { panic!("{collects:?}") };
    assert_eq!(failed.status, Status::error("driver_error"));
    assert_eq!(attribute(failed, "spec_decode.collection.outcome").as_deref(), Some("failed"));
    assert_eq!(attribute(failed, "error.type").as_deref(), Some("driver_error"));
    assert_eq!(attribute(failed, "spec_decode.drafts"), None);
    assert_eq!(failed.links.links.len(), 1);
    assert_eq!(resolved.status, Status::Unset);
    assert_eq!(attribute(resolved, "spec_decode.drafts").as_deref(), Some("6"), "held back, not lost");
}

#[test]
fn a_death_and_a_detach_are_losses_also_outside_of_any_step() {
    let engine = Engine::new();
    let attached = engine.handle.attach("0", engine.device.source()).unwrap();
    engine.device.land_after(9);
    engine.start_copy();
    drop(attached);
    engine.device.land_after(0);
    let _attached = engine.handle.attach("0", engine.device.source()).unwrap();
    engine.device.land_after(9);
    engine.start_copy();
    engine.device.fail_with(Some(SourceError::Dead(Dead::DeviceLost)));
    engine.handle.poll("0");
    let _ = engine.handle.flush(INTERVAL);
    let collects = engine.traces.collects();
    let [detached, dead] = &collects[..] else { panic!("{collects:?}") };
    assert_eq!(detached.status, Status::error("lost"));
    assert_eq!(dead.status, Status::error("device_lost"));
    for lost in [detached, dead] {
        assert_eq!(attribute(lost, "spec_decode.collection.outcome").as_deref(), Some("lost"));
        assert!(lost.links.links.is_empty(), "it ended outside of any step");
    }
}

#[test]
fn a_copy_that_starts_when_a_future_closes_is_that_futures_child() {
    let engine = Engine::new();
    let _attached = engine.handle.attach("0", engine.device.source()).unwrap();
    let future_step = || {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
        run(async { engine.device.add(5, 7) }.instrument(span));
    };
    // The first one shows that the engine's steps are futures.
    future_step();
    engine.mock.increment(INTERVAL);
    future_step();
    future_step();
    engine.handle.flush(INTERVAL).unwrap();
    let (steps, collects) = (engine.traces.steps(), engine.traces.collects());
    let [collect] = &collects[..] else { panic!("{collects:?}") };
    assert_eq!(collect.parent_span_id, steps[1].span_context.span_id());
    assert_eq!(collect.links.links[0].span_context.span_id(), steps[2].span_context.span_id());
    assert_eq!(attribute(collect, "spec_decode.drafts").as_deref(), Some("4"));
}

#[test]
fn of_two_futures_under_way_the_one_that_closes_is_the_parent() {
    let engine = Engine::new();
    let _attached = engine.handle.attach("0", engine.device.source()).unwrap();
    let pending = |number: u64| {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 2, num_tokens = number);
        Box::pin(std::future::pending::<()>().instrument(span))
    };
    let (mut first, mut second) = (pending(1), pending(2));
    let mut waker = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        // From the second round on they are known as futures; the copy is due from the start.
        engine.mock.increment(INTERVAL);
        assert!(first.as_mut().poll(&mut waker).is_pending());
        assert!(second.as_mut().poll(&mut waker).is_pending());
    }
    engine.handle.poll("0");
    engine.mock.increment(INTERVAL);
    drop(first);
    drop(second);
    engine.handle.flush(INTERVAL).unwrap();
    let (steps, collects) = (engine.traces.steps(), engine.traces.collects());
    let closed_first = &steps[0];
    assert_eq!(attribute(closed_first, "num_tokens").as_deref(), Some("1"));
    let parents: Vec<SpanId> = collects.iter().map(|collect| collect.parent_span_id).collect();
    assert_eq!(parents.last(), Some(&closed_first.span_context.span_id()), "{collects:?}");
}

#[test]
fn a_copy_that_ends_in_a_step_that_is_not_left_yet_is_flushed_without_a_link() {
    let engine = Engine::new();
    let _attached = engine.handle.attach("0", engine.device.source()).unwrap();
    engine.start_copy();
    let open = step_span!(num_spec_tokens = 4, num_drafts = 2);
    let inside = open.enter();
    assert!(engine.handle.flush(std::time::Duration::ZERO).is_err(), "a step is open");
    drop(inside);
    drop(open);
    engine.handle.flush(INTERVAL).unwrap();
    let collects = engine.traces.collects();
    assert_eq!(collects.len(), 1);
    assert!(collects[0].links.links.is_empty(), "the first flush has let go of it");
}
