//! Collect spans are made without starting, holding or changing the spans of steps; where a step is not traced there is
//! no collect span, and the counting goes on as ever.
#![cfg(feature = "otel-trace")]
#![allow(missing_docs)]

mod support;
mod traced;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_sdk::trace::Sampler;
use support::{Device, set_default};
use traced::{INTERVAL, Traces, layer_builder, step};
use tracing_opentelemetry::{OpenTelemetrySpanExt, SetParentError};
use tracing_spec_decode::{Handle, step_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};

fn request() -> Context {
    let (trace, span) = (TraceId::from_bytes([7; 16]), SpanId::from_bytes([9; 8]));
    let request = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
    Context::new().with_remote_span_context(request)
}

#[test]
fn an_engine_sets_a_steps_parent_inside_the_step_also_where_that_step_starts_a_copy() {
    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer()).with_context_activation(false);
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer).with(otel));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();
    for _ in 0..3 {
        mock.increment(INTERVAL);
        let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
        let _inside = span.enter();
        span.set_parent(request()).unwrap();
        device.add(5, 7);
    }
    handle.flush(INTERVAL).unwrap();
    assert_eq!(traces.collects().len(), 2);
    let of_request = |span: &&opentelemetry_sdk::trace::SpanData| {
        span.span_context.trace_id() == request().span().span_context().trace_id()
    };
    assert_eq!(traces.steps().iter().filter(of_request).count(), 3);
    assert_eq!(traces.collects().iter().filter(of_request).count(), 2, "the copy is in the request's trace");
}

#[test]
fn a_step_without_a_collection_is_not_even_started() {
    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer()).with_context_activation(false);
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer).with(otel));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();
    let left = |device: &Device| {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
        span.in_scope(|| device.add(5, 7));
        span
    };
    let plain = left(&device);
    plain.set_parent(request()).expect("nobody has asked for its context");
    drop(plain);
    mock.increment(INTERVAL);
    let starts = left(&device);
    assert!(matches!(starts.set_parent(request()), Err(SetParentError::AlreadyStarted)), "it starts a copy");
    drop(starts);
    let resolves = left(&device);
    assert!(matches!(resolves.set_parent(request()), Err(SetParentError::AlreadyStarted)), "a copy ends in it");
    drop(resolves);
    let plain = left(&device);
    plain.set_parent(request()).expect("nobody has asked for its context");
}

#[test]
fn no_span_is_held_open_for_a_copy_in_flight() {
    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer());
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer).with(otel));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();
    device.land_after(1_000);
    mock.increment(INTERVAL);
    for steps in 1..=100 {
        step(&device);
        assert_eq!(traces.steps().len(), steps, "each step is exported as it closes");
    }
}

/// Steps with copies, of which nothing may be seen but the numbers.
fn counts_without_collect_spans(traces: &Traces, mock: &quanta::Mock, handle: &Handle) {
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();
    for _ in 0..10 {
        mock.increment(INTERVAL);
        step(&device);
    }
    handle.flush(INTERVAL).unwrap();
    assert!(device.starts() > 5);
    assert_eq!(handle.metrics("0").unwrap().accepted_tokens, Some(50));
    assert!(traces.collects().is_empty());
}

#[test]
fn without_a_trace_layer_there_is_no_collect_span() {
    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (handle, _default) = set_default(layer);
    counts_without_collect_spans(&traces, &mock, &handle);
}

#[test]
fn where_a_filter_hides_the_steps_from_the_trace_layer_there_is_no_collect_span() {
    let traces = Traces::new();
    let (layer, mock) = layer_builder(&traces);
    let (layer, handle) = layer.build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer()).with_filter(LevelFilter::WARN);
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(otel).with(layer));
    counts_without_collect_spans(&traces, &mock, &handle);
}

#[test]
fn where_the_sampler_drops_the_steps_there_is_no_collect_span() {
    let traces = Traces::sampled_by(Sampler::AlwaysOff);
    let (layer, mock) = layer_builder(&traces);
    // The collect spans' own provider samples everything.
    let collects = Traces::new();
    let (layer, handle) = layer.with_tracer_provider(&collects.provider).build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer());
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer).with(otel));
    counts_without_collect_spans(&collects, &mock, &handle);
    assert!(traces.steps().is_empty());
}
