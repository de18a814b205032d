//! What the tests of collect spans share: a tracer in memory, and an engine whose copies start and end when told to.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracer, SdkTracerProvider, ShouldSample, SpanData};
use tracing_spec_decode::{Builder, builder, step_span};

use crate::support::Device;

pub const INTERVAL: Duration = Duration::from_secs(5);

/// A tracer whose spans can be read as soon as they have ended.
pub struct Traces {
    pub provider: SdkTracerProvider,
    exporter: InMemorySpanExporter,
}

impl Traces {
    pub fn new() -> Self {
        Self::sampled_by(opentelemetry_sdk::trace::Sampler::AlwaysOn)
    }

    pub fn sampled_by(sampler: impl ShouldSample + 'static) -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(exporter.clone()).build();
        Self { provider, exporter }
    }

    pub fn tracer(&self) -> SdkTracer {
        self.provider.tracer("engine")
    }

    pub fn named(&self, name: &str) -> Vec<SpanData> {
        self.exporter.get_finished_spans().unwrap().into_iter().filter(|span| span.name == name).collect()
    }

    pub fn steps(&self) -> Vec<SpanData> {
        self.named("spec_decode_step")
    }

    pub fn collects(&self) -> Vec<SpanData> {
        self.named("spec_decode.collect")
    }
}

/// A layer for these traces, with a clock set by hand.
pub fn layer_builder(traces: &Traces) -> (Builder<'static>, std::sync::Arc<quanta::Mock>) {
    let (clock, mock) = quanta::Clock::mock();
    (builder().with_clock(clock).with_interval(INTERVAL).with_tracer_provider(&traces.provider), mock)
}

/// One guarded step of two drafts of four tokens each, five accepted.
pub fn step(device: &Device) {
    let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
    span.in_scope(|| device.add(5, 7));
}

/// The value of a span's attribute, as text.
pub fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
    found.map(|attribute| attribute.value.to_string())
}
