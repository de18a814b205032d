//! The OpenTelemetry side: one meter provider, with a reader for each place that the metrics go to.

use std::env;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

use crate::exported::{Point, last_export};
use crate::otlp::{self, Otlp};

/// The provider and what is needed to end it in order.
#[derive(Debug)]
pub(crate) struct Telemetry {
    provider: SdkMeterProvider,
    memory: InMemoryMetricExporter,
    otlp: Option<Otlp>,
}

impl Telemetry {
    /// Into memory always, to an OTLP endpoint where the environment names one, and into `registry` for scrapes.
    pub(crate) fn start(interval: Duration, registry: Option<&prometheus::Registry>) -> Result<Self, String> {
        let memory = InMemoryMetricExporter::default();
        // Read at the flush only.
        let never = Duration::from_secs(365 * 24 * 3600);
        let mut provider = SdkMeterProvider::builder()
            .with_resource(resource())
            .with_reader(PeriodicReader::builder(memory.clone()).with_interval(never).build());
        if let Some(registry) = registry {
            let reader = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build();
            provider = provider.with_reader(reader.map_err(|error| format!("cannot serve scrapes: {error}"))?);
        }
        let otlp = match otlp::from_env(interval)? {
            Some((otlp, reader)) => {
                provider = provider.with_reader(reader);
                Some(otlp)
            }
            None => None,
        };
        Ok(Self { provider: provider.build(), memory, otlp })
    }

    pub(crate) fn provider(&self) -> &SdkMeterProvider {
        &self.provider
    }

    /// Exports for the last time, everywhere; what the in-memory exporter got is returned.
    pub(crate) fn last_flush(&self) -> Vec<Point> {
        self.otlp.iter().for_each(Otlp::announce_last);
        // An endpoint that can't be reached is told of by `otlp_outcome`.
        let _ = self.provider.force_flush();
        last_export(&self.memory)
    }

    /// How the export to an OTLP endpoint went, if there was one.
    pub(crate) fn otlp_outcome(&self) -> Option<Result<String, String>> {
        self.otlp.as_ref().map(Otlp::outcome)
    }

    pub(crate) fn shutdown(self) {
        let _ = self.provider.shutdown();
    }
}

/// What the environment says, else a name and an id of our own: by the id replicas are told apart.
fn resource() -> Resource {
    let given = |name: &str| env::var(name).unwrap_or_default();
    let attributes = given("OTEL_RESOURCE_ATTRIBUTES");
    let mut resource = Resource::builder();
    // Code would override the environment.
    if given("OTEL_SERVICE_NAME").is_empty() && !attributes.contains("service.name=") {
        resource = resource.with_service_name("spec-decode-quickstart");
    }
    if !attributes.contains("service.instance.id=") {
        let id = RandomState::new().hash_one(std::process::id());
        resource = resource.with_attribute(KeyValue::new("service.instance.id", format!("{id:016x}")));
    }
    resource.build()
}
