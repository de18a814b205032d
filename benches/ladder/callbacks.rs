//! A reader's collection: all callbacks, and what the SDK does with their points, against observable counters of the
//! SDK's own with as many points.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{Instrument, PeriodicReader, SdkMeterProvider, Stream, Temporality};
use tracing::info_span;
use tracing::subscriber::with_default;
use tracing_spec_decode::{HostCounters, builder};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use crate::turns::{medians, nanoseconds};

/// Engines, and positions that their sources count. The last is beyond the SDK's own limit of attribute sets.
const SIZES: [(usize, usize); 5] = [(1, 0), (1, 16), (64, 0), (64, 16), (1_024, 0)];
/// Engines times anomalies or outcomes fit in.
const CARDINALITY: usize = 20_000;

/// Counts the points of the last export, and keeps none.
#[derive(Clone, Default)]
struct Points(Arc<AtomicUsize>);

impl PushMetricExporter for Points {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let metrics = metrics.scope_metrics().flat_map(|scope| scope.metrics());
        self.0.store(metrics.map(|metric| points(metric.data())).sum(), Ordering::Relaxed);
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

fn points(data: &AggregatedMetrics) -> usize {
    fn of<T>(data: &MetricData<T>) -> usize {
        match data {
            MetricData::Sum(sum) => sum.data_points().count(),
            MetricData::Gauge(gauge) => gauge.data_points().count(),
            _ => 0,
        }
    }
    match data {
        AggregatedMetrics::U64(data) => of(data),
        AggregatedMetrics::I64(data) => of(data),
        AggregatedMetrics::F64(data) => of(data),
    }
}

struct Pipeline {
    provider: SdkMeterProvider,
    points: Points,
}

impl Pipeline {
    fn new() -> Self {
        let points = Points::default();
        let reader = PeriodicReader::builder(points.clone()).with_interval(Duration::from_secs(3600)).build();
        let view = |_: &Instrument| Stream::builder().with_cardinality_limit(CARDINALITY).build().ok();
        Self { provider: SdkMeterProvider::builder().with_reader(reader).with_view(view).build(), points }
    }

    fn collect(&self) -> Duration {
        let start = Instant::now();
        self.provider.force_flush().expect("it is not shut down");
        start.elapsed()
    }

    fn points(&self) -> usize {
        self.collect();
        self.points.0.load(Ordering::Relaxed)
    }
}

/// Our instruments, after a step with drafts of each engine.
fn ours(engines: usize, positions: usize) -> (Pipeline, impl Sized) {
    let pipeline = Pipeline::new();
    let bounded = builder().with_max_engines(engines).with_max_positions(positions).with_interval(Duration::ZERO);
    let (layer, handle) = bounded.with_meter_provider(&pipeline.provider).build().expect("within the bounds");
    let mut attached = Vec::new();
    with_default(registry().with(layer), || {
        for engine in 0..engines {
            let name = format!("engine-{engine}");
            if positions > 0 {
                let mut counters = HostCounters::with_positions(positions);
                attached.push(handle.attach(&name, counters.source()).expect("the engine is new"));
                counters.record_draft(16, 9, 10);
            }
            for _ in 0..2 {
                let fields = info_span!(
                    "spec_decode_step",
                    engine = name,
                    num_spec_tokens = 16_u64,
                    num_drafts = 1_u64,
                    num_accepted_tokens = 9_u64,
                    num_emitted_tokens = 10_u64
                );
                drop(fields.entered());
            }
        }
    });
    (pipeline, (handle, attached))
}

/// An observable counter by hand, with as many points.
fn by_hand(points: usize) -> Pipeline {
    let pipeline = Pipeline::new();
    let attributes: Vec<_> = (0..points).map(|point| [KeyValue::new("engine", point.to_string())]).collect();
    let meter = pipeline.provider.meter("by_hand");
    let counter = meter.u64_observable_counter("tokens").with_callback(move |observer| {
        attributes.iter().zip(0..).for_each(|(attributes, value)| observer.observe(value, attributes));
    });
    // The SDK keeps the callback.
    let _ = counter.build();
    pipeline
}

pub(crate) fn print() {
    println!("\na reader's collection, up to the exporter\n");
    println!("| engines | positions | points | us | ns per point | ratio to a counter by hand with as many points |");
    println!("|---:|---:|---:|---:|---:|---:|");
    for (engines, positions) in SIZES {
        let (ours, _alive) = ours(engines, positions);
        let points = ours.points();
        let contenders = [ours, by_hand(points)];
        let medians = medians(&contenders, |pipeline| Some(pipeline.collect()));
        let [ours, by_hand] = [0, 1].map(|which| medians[which].map_or(f64::NAN, |time| nanoseconds(time, 1)));
        println!(
            "| {engines} | {positions} | {points} | {:.0} | {:.0} | {:.2} |",
            ours / 1e3,
            ours / points as f64,
            ours / by_hand
        );
    }
}
