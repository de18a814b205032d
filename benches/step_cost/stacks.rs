//! The stacks: ours, what it is measured against, and neighbours.

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::subscriber::{Interest, with_default};
use tracing::{Metadata, Subscriber};
use tracing_opentelemetry::MetricsLayer;
use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};
use tracing_spec_decode::{HostCounters, builder};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::{self, format::FmtSpan};
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::registry;

pub(crate) const NAMES: [&str; 14] = [
    "none",
    "registry",
    "noop",
    "ours",
    "ours_device",
    "ours_host",
    "ours_sampled",
    "filtered",
    "filtered_noop",
    "filtered_ours",
    "fmt",
    "otel_trace",
    "otel_metrics",
    "ours_cuda",
];

/// Runs something under a stack; false if there is none of this name.
pub(crate) fn run(stack: &str, steps: impl FnOnce()) -> bool {
    let interval = if SAMPLED.contains(&stack) { Duration::ZERO } else { Duration::from_secs(3600) };
    let (layer, handle) = builder().with_interval(interval).build().expect("the defaults are right");
    match stack {
        "none" => steps(),
        "registry" => with_default(registry(), steps),
        "noop" => with_default(registry().with(Noop.with_filter(Ours)), steps),
        "ours" => with_default(registry().with(layer), steps),
        "ours_device" | "ours_sampled" => {
            let _of_the_default = handle.attach("0", Device).expect("the engine is new");
            let _of_the_named = handle.attach("e1", Device).expect("the engine is new");
            with_default(registry().with(layer), steps);
        }
        "ours_host" => {
            let (one, other) = (HostCounters::new(), HostCounters::new());
            let _of_the_default = handle.attach("0", one.source()).expect("the engine is new");
            let _of_the_named = handle.attach("e1", other.source()).expect("the engine is new");
            with_default(registry().with(layer), steps);
        }
        "filtered" => with_default(registry().with(Noop.with_filter(LevelFilter::INFO)), steps),
        "filtered_noop" => {
            with_default(registry().with(Noop.with_filter(Ours)).with(Noop.with_filter(LevelFilter::INFO)), steps);
        }
        "filtered_ours" => with_default(registry().with(layer).with(Noop.with_filter(LevelFilter::INFO)), steps),
        "fmt" => {
            let layer = fmt::layer().with_writer(std::io::sink).with_span_events(FmtSpan::CLOSE);
            with_default(registry().with(layer), steps);
        }
        "otel_trace" => {
            let provider = SdkTracerProvider::builder().build();
            let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("steps"));
            with_default(registry().with(layer), steps);
        }
        "otel_metrics" => with_default(registry().with(MetricsLayer::new(meter_provider())), steps),
        #[cfg(feature = "cuda")]
        "ours_cuda" => return simulated::run(layer, &handle, steps),
        _ => return false,
    }
    true
}

/// Stacks that sample each step, where the others never do.
const SAMPLED: [&str; 2] = ["ours_sampled", "ours_cuda"];

/// OpenTelemetry's SDK with a reader that nobody asks: without one its counters would do nothing.
pub(crate) fn meter_provider() -> SdkMeterProvider {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter).with_interval(Duration::from_secs(3600)).build();
    SdkMeterProvider::builder().with_reader(reader).build()
}

/// The CUDA source on the simulated driver, where the arguments ask for it: two streams, two counters each.
#[cfg(feature = "cuda")]
#[path = "simulated.rs"]
mod simulated;

/// A layer that does nothing.
pub(crate) struct Noop;

impl<S: Subscriber> Layer<S> for Noop {}

/// The filter that any layer for these spans would have.
pub(crate) struct Ours;

impl Ours {
    fn is_step(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && ["spec_decode_step", "spec_decode_draft"].contains(&metadata.name())
    }
}

impl<S> Filter<S> for Ours {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        Self::is_step(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::is_step(metadata) { Interest::sometimes() } else { Interest::never() }
    }
}

/// A source whose copies land at once.
struct Device;

impl CounterSource for Device {
    fn layout(&self) -> Layout {
        Layout::accepted().with_emitted()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, _counters: &mut Counters) -> Result<Snapshot, SourceError> {
        Ok(Snapshot::Landed)
    }
}
