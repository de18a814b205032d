//! Metrics and traces by OTLP, as the environment says: the set-up to copy for an engine that wants both.

use std::hash::{BuildHasher, RandomState};

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{MetricExporter, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Runtime;
use tracing_spec_decode::{CollectingSteps, SpecDecodeLayer};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::Error;

pub(crate) struct Telemetry {
    pub(crate) metrics: SdkMeterProvider,
    pub(crate) traces: SdkTracerProvider,
    /// gRPC needs one; the SDK's own threads do the exporting.
    _runtime: Option<Runtime>,
}

impl Telemetry {
    pub(crate) fn start() -> Result<Self, Error> {
        let by_grpc = std::env::var("OTEL_EXPORTER_OTLP_PROTOCOL").is_ok_and(|protocol| protocol == "grpc");
        let runtime = by_grpc
            .then(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build())
            .transpose()?;
        let inside = runtime.as_ref().map(Runtime::enter);
        let (metrics, spans) = if by_grpc {
            (MetricExporter::builder().with_tonic().build()?, SpanExporter::builder().with_tonic().build()?)
        } else {
            // The protocol is set: another crate of the build can change the default by a feature.
            let metrics = MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build()?;
            (metrics, SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build()?)
        };
        drop(inside);
        Ok(Self {
            metrics: SdkMeterProvider::builder()
                .with_resource(resource())
                .with_reader(PeriodicReader::builder(metrics).build())
                .build(),
            traces: SdkTracerProvider::builder().with_resource(resource()).with_batch_exporter(spans).build(),
            _runtime: runtime,
        })
    }

    /// The layer, the OpenTelemetry layer with the steps that the filter lets through, and a log of warnings.
    pub(crate) fn install(
        &self,
        layer: SpecDecodeLayer<Registry>,
        filter: Option<CollectingSteps>,
    ) -> Result<(), Error> {
        // Spans below INFO are those of the exporter's own HTTP stack: it would trace its own exports.
        let filter = LevelFilter::INFO.and(filter);
        let otel = tracing_opentelemetry::layer().with_tracer(self.traces.tracer("replica")).with_filter(filter);
        // On the log layer only: on the whole stack it would hide the steps as well.
        let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(EnvFilter::new("warn"));
        Ok(tracing_subscriber::registry().with(layer).with(otel).with(log).try_init()?)
    }

    /// After the handle's flush: what is left is exported.
    pub(crate) fn shutdown(self) {
        // A failure has been logged.
        let _ = self.traces.shutdown();
        let _ = self.metrics.shutdown();
    }
}

/// Replicas are told apart by `service.instance.id`: the operator's where there is one, else one of the process's own.
fn resource() -> Resource {
    static OWN: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| format!("{:016x}", RandomState::new().hash_one(std::process::id())));
    let builder = Resource::builder();
    let given = std::env::var("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    if given.contains("service.instance.id=") {
        return builder.build();
    }
    builder.with_attribute(KeyValue::new("service.instance.id", OWN.clone())).build()
}
