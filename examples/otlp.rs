//! The layer with OTLP over HTTP: the set-up to copy. `OTEL_EXPORTER_OTLP_ENDPOINT` says where to, as always.

use std::error::Error;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{MetricExporter, Protocol, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> Result<(), Box<dyn Error>> {
    // The protocol is set: another crate of the build can change the default by a feature. The exporter blocks, on the
    // reader's own thread, so no async runtime is needed here.
    let exporter = MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary).build()?;
    let reader = PeriodicReader::builder(exporter).with_interval(Duration::from_secs(10)).build();
    // Replicas are told apart by `service.instance.id`.
    let instance = format!("{}-{}", std::env::var("HOSTNAME").unwrap_or_default(), std::process::id());
    let resource = Resource::builder()
        .with_service_name("my-engine")
        .with_attribute(KeyValue::new("service.instance.id", instance))
        .build();
    let provider = SdkMeterProvider::builder().with_resource(resource).with_reader(reader).build();

    let (layer, handle) = builder().with_meter_provider(&provider).build()?;
    // The exporter's own HTTP stack stays out of the log, and so do the steps, whose fields it would format. The
    // filter is the log's alone: on the whole stack it would hide the steps from our layer as well.
    let quiet = EnvFilter::new("info,hyper=off,h2=off,reqwest=off,opentelemetry=warn");
    let log = tracing_subscriber::fmt::layer()
        .with_filter(quiet.and(filter_fn(|metadata| metadata.name() != "spec_decode_step")));
    tracing_subscriber::registry().with(layer).with(log).init();

    // Your decode loop.
    for _ in 0..100 {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 8);
        span.in_scope(|| std::thread::sleep(Duration::from_millis(5)));
        span.record("num_accepted_tokens", 19);
        span.record("num_emitted_tokens", 27);
    }

    // In this order: what is in flight is published, then exported; the handle goes last.
    handle.flush(Duration::from_secs(5))?;
    provider.shutdown().map_err(|error| format!("the last export to the Collector: {error}"))?;
    drop(handle);
    Ok(())
}
