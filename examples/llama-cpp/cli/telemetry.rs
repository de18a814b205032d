//! The OpenTelemetry side: where the environment names an OTLP endpoint, metrics and spans go there.

use std::env;

use anyhow::{Context, Result};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) meters: SdkMeterProvider,
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    pub(crate) fn start() -> Result<Self> {
        let meters = SdkMeterProvider::builder().with_resource(resource());
        if env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_none_or(|endpoint| endpoint.is_empty()) {
            return Ok(Self { meters: meters.build(), traces: None });
        }
        // Both exporters block, each on a thread of its own.
        let metrics = MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build();
        let spans = SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build();
        let reader = PeriodicReader::builder(metrics.context("cannot export metrics")?).build();
        let traces = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_batch_exporter(spans.context("cannot export spans")?);
        Ok(Self { meters: meters.with_reader(reader).build(), traces: Some(traces.build()) })
    }

    pub(crate) fn tracer(&self) -> Option<SdkTracer> {
        self.traces.as_ref().map(|traces| traces.tracer("spec-decode-llama"))
    }

    /// Exports what is left.
    pub(crate) fn shutdown(&self) -> Result<()> {
        self.meters.shutdown().context("the last metrics did not arrive")?;
        self.traces.as_ref().map_or(Ok(()), SdkTracerProvider::shutdown).context("the last spans did not arrive")
    }
}

fn resource() -> Resource {
    // A name in code would override the environment's.
    let is_named = env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty());
    let resource = Resource::builder();
    if is_named { resource.build() } else { resource.with_service_name("spec-decode-llama").build() }
}
