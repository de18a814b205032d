//! Export to an OTLP endpoint, where the environment names one, and whether it arrived.

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_otlp::{
    ExporterBuildError, MetricExporter, Protocol, RetryPolicy, WithExportConfig, WithHttpConfig, WithTonicConfig,
};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, Temporality};
use tokio::runtime::Runtime;

/// How long an endpoint that does not answer may hold up the end of the run; `OTEL_EXPORTER_OTLP_TIMEOUT` overrides it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The export, seen from outside of its reader's thread.
#[derive(Debug)]
pub(crate) struct Otlp {
    endpoint: String,
    delivery: Arc<Delivery>,
    /// gRPC needs one as long as it exports. It must not be the thread's own: flush and shutdown wait for it.
    runtime: Option<Runtime>,
}

#[derive(Debug, Default)]
struct Delivery {
    exports: AtomicU64,
    failures: AtomicU64,
    /// Why the last export failed, if it did.
    failure: Mutex<Option<String>>,
    closed: AtomicBool,
}

/// The exporter and a reader for it; none where no endpoint is set.
pub(crate) fn from_env(interval: Duration) -> Result<Option<(Otlp, PeriodicReader<Watched>)>, String> {
    let Some(endpoint) = variable("ENDPOINT") else { return Ok(None) };
    let (exporter, runtime) = match variable("PROTOCOL").as_deref() {
        None | Some("http/protobuf") => (http(), None),
        Some("grpc") => {
            let runtime = runtime().map_err(|error| format!("cannot start a runtime for gRPC: {error}"))?;
            let entered = runtime.enter();
            let exporter = grpc();
            drop(entered);
            (exporter, Some(runtime))
        }
        Some(other) => {
            return Err(format!("OTEL_EXPORTER_OTLP_PROTOCOL is http/protobuf or grpc here, not {other:?}"));
        }
    };
    let exporter = exporter.map_err(|error| format!("cannot export to {endpoint:?}: {error}").replace('\n', " "))?;
    let delivery = Arc::new(Delivery::default());
    let mut reader = PeriodicReader::builder(Watched { exporter, delivery: Arc::clone(&delivery) });
    if env::var_os("OTEL_METRIC_EXPORT_INTERVAL").is_none() {
        reader = reader.with_interval(interval.max(Duration::from_secs(1)));
    }
    Ok(Some((Otlp { endpoint, delivery, runtime }, reader.build())))
}

// The protocol is always set: which one is the default depends on the features that the whole build turns on.
fn http() -> Result<MetricExporter, ExporterBuildError> {
    let builder = MetricExporter::builder().with_http().with_protocol(Protocol::HttpBinary);
    timed(builder).with_retry_policy(retries()).build()
}

fn grpc() -> Result<MetricExporter, ExporterBuildError> {
    let builder = MetricExporter::builder().with_tonic().with_protocol(Protocol::Grpc);
    timed(builder).with_retry_policy(retries()).build()
}

fn timed<B: WithExportConfig>(builder: B) -> B {
    if variable("TIMEOUT").is_some() { builder } else { builder.with_timeout(TIMEOUT) }
}

/// The next interval tries again anyway, and totals make up for what was missed.
fn retries() -> RetryPolicy {
    RetryPolicy::recommended().with_max_retries(1)
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

/// The variable for metrics, else the one for all signals; empty counts as unset.
fn variable(name: &str) -> Option<String> {
    [format!("OTEL_EXPORTER_OTLP_METRICS_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")]
        .iter()
        .find_map(|name| env::var_os(name).filter(|value| !value.is_empty()))
        .map(|value| value.to_string_lossy().into_owned())
}

impl Otlp {
    /// One line: how often it exported, or that the last export did not arrive, and why.
    pub(crate) fn outcome(&self) -> Result<String, String> {
        let exports = self.delivery.exports.load(Ordering::Relaxed);
        let failures = self.delivery.failures.load(Ordering::Relaxed);
        let endpoint = self.endpoint.escape_debug();
        match &*self.delivery.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(format!("exported {} times to {endpoint}", exports - failures)),
            Some(why) => {
                Err(format!("OTLP export to {endpoint} failed, {failures} of {exports} times: {}", why.escape_debug()))
            }
        }
    }

    /// Keeps the provider's shutdown from exporting what a flush has just exported.
    pub(crate) fn close(&self) {
        self.delivery.closed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An exporter that remembers how it went: the results of flush and shutdown do not say why.
#[derive(Debug)]
pub(crate) struct Watched {
    exporter: MetricExporter,
    delivery: Arc<Delivery>,
}

impl PushMetricExporter for Watched {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        if self.delivery.closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let result = self.exporter.export(metrics).await;
        self.delivery.exports.fetch_add(1, Ordering::Relaxed);
        self.delivery.failures.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
        let failure = result.as_ref().err().map(ToString::to_string);
        *self.delivery.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        result
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}
