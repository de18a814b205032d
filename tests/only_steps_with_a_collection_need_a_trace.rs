//! `Handle::collecting_steps` shows the OpenTelemetry layer the steps in which a copy starts or ends, and leaves
//! everything that is not a step alone.
#![cfg(feature = "otel-trace")]
#![allow(missing_docs)]

mod support;
mod traced;

use std::time::Duration;

use support::Device;
use traced::{INTERVAL, Traces, layer_builder};
use tracing_spec_decode::step_span;
use tracing_subscriber::layer::{Layer, SubscriberExt};

const STEP: Duration = Duration::from_millis(10);

#[test]
fn every_collection_has_its_span_and_few_other_steps_have_one() {
    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer());
    let otel = otel.with_filter(handle.collecting_steps(STEP));
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer).with(otel));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();
    device.land_after(1);
    for _ in 0..10_000 {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
        span.in_scope(|| {
            mock.increment(STEP);
            device.add(5, 7);
        });
    }
    // What the flush starts belongs to no step.
    let started_in_steps = device.starts() - 1;
    handle.flush(INTERVAL).unwrap();
    let (steps, collects) = (traces.steps().len(), traces.collects().len());
    assert_eq!(collects, started_in_steps);
    assert!((15..=20).contains(&collects), "one in about five seconds of a hundred: {collects}");
    // The step that starts the copy, the one that finds it on its way, the one in which it ends.
    assert!(steps <= 4 * collects, "{steps} steps for {collects} collections");
    for collect in traces.collects() {
        let is_traced = |id| traces.steps().iter().any(|step| step.span_context.span_id() == id);
        assert!(is_traced(collect.parent_span_id));
        assert!(is_traced(collect.links.links[0].span_context.span_id()));
    }
}

#[test]
fn other_spans_are_traced_as_ever() {
    let traces = Traces::new();
    let (layer, _) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer());
    let otel = otel.with_filter(handle.collecting_steps(STEP));
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer).with(otel));
    tracing::info_span!("request").in_scope(|| drop(step_span!(num_spec_tokens = 4, num_drafts = 2)));
    assert_eq!(traces.named("request").len(), 1);
    assert!(traces.steps().is_empty(), "there is no source to copy from");
    assert_eq!(handle.status("0").steps, 1);
}
