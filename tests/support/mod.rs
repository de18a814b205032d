//! What the tests share: a metric pipeline in memory, a stack whose clock is set by hand, a source that lands when told
//! to.
#![allow(dead_code, unreachable_pub, missing_docs)]

mod stack;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{
    InMemoryMetricExporter, InMemoryMetricExporterBuilder, PeriodicReader, SdkMeterProvider, Temporality,
};
use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};
use tracing_spec_decode::{EngineTotals, Handle};

#[allow(unused_imports, reason = "no test uses all of it")]
pub use stack::{Stack, set_default, stack_of};

/// A provider whose exports can be read.
pub struct Exported {
    pub provider: SdkMeterProvider,
    exporters: Vec<InMemoryMetricExporter>,
}

/// What one reader got: every point by `name{attribute=value,...}`, attributes sorted.
pub type Points = BTreeMap<String, f64>;

impl Exported {
    /// A reader of each temporality.
    pub fn new(temporalities: &[Temporality]) -> Self {
        let mut provider = SdkMeterProvider::builder();
        let mut exporters = Vec::new();
        for &temporality in temporalities {
            let exporter = InMemoryMetricExporterBuilder::new().with_temporality(temporality).build();
            let reader = PeriodicReader::builder(exporter.clone()).with_interval(Duration::from_secs(3600)).build();
            provider = provider.with_reader(reader);
            exporters.push(exporter);
        }
        Self { provider: provider.build(), exporters }
    }

    pub fn cumulative() -> Self {
        Self::new(&[Temporality::Cumulative])
    }

    /// One collection.
    pub fn collect(&self) -> Points {
        self.collect_each().swap_remove(0)
    }

    /// One collection of each reader, in the order in which they were asked for.
    pub fn collect_each(&self) -> Vec<Points> {
        self.exporters.iter().for_each(InMemoryMetricExporter::reset);
        self.provider.force_flush().unwrap();
        self.exported()
    }

    /// What each reader has exported since the last collection.
    pub fn exported(&self) -> Vec<Points> {
        let exported = self.exporters.iter().map(|exporter| exporter.get_finished_metrics().unwrap());
        exported
            .map(|resources| {
                let mut points = Points::new();
                resources.iter().for_each(|resource| add_points(resource, &mut points));
                points
            })
            .collect()
    }
}

fn add_points(resource: &ResourceMetrics, points: &mut Points) {
    for scope in resource.scope_metrics() {
        let of_scope: String = scope.scope().attributes().map(|pair| format!("@{}", pair.value)).collect();
        for metric in scope.metrics() {
            let name = format!("{}{of_scope}", metric.name());
            match metric.data() {
                AggregatedMetrics::U64(data) => add_data(&name, data, |value| value as f64, points),
                AggregatedMetrics::F64(data) => add_data(&name, data, |value| value, points),
                AggregatedMetrics::I64(data) => add_data(&name, data, |value| value as f64, points),
            }
        }
    }
}

fn add_data<T: Copy>(name: &str, data: &MetricData<T>, number: impl Fn(T) -> f64, points: &mut Points) {
    let mut add = |attributes: &mut dyn Iterator<Item = &opentelemetry::KeyValue>, value: T| {
        let mut pairs: Vec<String> = attributes.map(|pair| format!("{}={}", pair.key, pair.value)).collect();
        pairs.sort();
        points.insert(format!("{name}{{{}}}", pairs.join(",")), number(value));
    };
    match data {
        MetricData::Sum(sum) => sum.data_points().for_each(|point| add(&mut point.attributes(), point.value())),
        MetricData::Gauge(gauge) => gauge.data_points().for_each(|point| add(&mut point.attributes(), point.value())),
        _ => unreachable!("no histograms here"),
    }
}

/// Whether a point is one of a counter, which never falls.
pub fn is_counter(point: &str) -> bool {
    let gauges = ["_rate{", "_efficiency{", "_length{", "num_spec_tokens{", ".age{", ".info{", ".speedup{"];
    !gauges.iter().any(|gauge| point.contains(gauge))
}

/// The point of engine 0 with this name.
pub fn of_engine(name: &str) -> String {
    format!("spec_decode.{name}{{spec_decode.engine=0}}")
}

/// The point of this anomaly of engine 0.
pub fn anomaly(kind: &str) -> String {
    format!("spec_decode.anomalies{{spec_decode.anomaly.type={kind},spec_decode.engine=0}}")
}

/// How many of engine 0's collections had this outcome, for this reason if there is one.
pub fn collections(points: &Points, outcome: &str, error: Option<&str>) -> f64 {
    let error = error.map(|error| format!("error.type={error},")).unwrap_or_default();
    let point =
        format!("spec_decode.collections{{{error}spec_decode.collection.outcome={outcome},spec_decode.engine=0}}");
    points.get(&point).copied().unwrap_or_default()
}

/// The point of engine 0 that is of its steps with drafts, or of those without.
pub fn of_steps(name: &str, drafted: bool) -> String {
    format!("spec_decode.{name}{{spec_decode.drafted={drafted},spec_decode.engine=0}}")
}

/// The point of engine 0 that is of this draft position.
pub fn of_position(name: &str, position: usize) -> String {
    format!("spec_decode.{name}{{spec_decode.engine=0,spec_decode.position={position}}}")
}

/// What is exported of this engine.
pub fn totals_of(handle: &Handle, engine: &str) -> EngineTotals {
    handle.totals().engines.into_iter().find(|totals| totals.engine == engine).unwrap()
}

/// Polls a future until it is ready.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Ends the process if the test has not ended by itself: what would be a deadlock becomes a failure.
pub struct Watchdog(Option<std::sync::mpsc::Sender<()>>);

impl Watchdog {
    pub fn of(limit: Duration) -> Self {
        let (end, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(limit) {
                eprintln!("no end after {limit:?}: a deadlock");
                std::process::abort();
            }
        });
        Self(Some(end))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// A source whose counters and answers are set by the test.
#[derive(Clone, Default)]
pub struct Device(Arc<Mutex<DeviceState>>);

#[derive(Default)]
struct DeviceState {
    now: Counters,
    taken: Counters,
    /// How many polls answer "pending" before a copy lands.
    polls_until_landed: usize,
    left: usize,
    fails: Option<SourceError>,
    pub starts: usize,
}

impl Device {
    pub fn set(&self, accepted: u64, emitted: u64) {
        let mut state = self.0.lock().unwrap();
        state.now.accepted = accepted;
        state.now.emitted = emitted;
    }

    pub fn add(&self, accepted: u64, emitted: u64) {
        let mut state = self.0.lock().unwrap();
        state.now.accepted += accepted;
        state.now.emitted += emitted;
    }

    pub fn land_after(&self, polls: usize) {
        self.0.lock().unwrap().polls_until_landed = polls;
    }

    /// A copy in flight lands at the next poll.
    pub fn land(&self) {
        self.0.lock().unwrap().left = 0;
    }

    pub fn fail_with(&self, error: Option<SourceError>) {
        self.0.lock().unwrap().fails = error;
    }

    pub fn starts(&self) -> usize {
        self.0.lock().unwrap().starts
    }

    pub fn source(&self) -> DeviceSource {
        DeviceSource { device: self.clone(), is_on_host: false }
    }

    /// The same counters, on the host.
    pub fn source_on_host(&self) -> DeviceSource {
        DeviceSource { device: self.clone(), is_on_host: true }
    }
}

/// The source of a [`Device`]: accepted and emitted tokens.
pub struct DeviceSource {
    device: Device,
    is_on_host: bool,
}

impl CounterSource for DeviceSource {
    fn layout(&self) -> Layout {
        Layout::accepted().with_emitted()
    }

    fn is_on_host(&self) -> bool {
        self.is_on_host
    }

    fn start(&mut self) -> Result<(), SourceError> {
        let mut state = self.device.0.lock().unwrap();
        if let Some(error) = state.fails {
            return Err(error);
        }
        state.starts += 1;
        state.taken = state.now.clone();
        state.left = state.polls_until_landed;
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        let mut state = self.device.0.lock().unwrap();
        if let Some(error) = state.fails {
            return Err(error);
        }
        if state.left > 0 {
            state.left -= 1;
            return Ok(Snapshot::Pending);
        }
        let counted = if self.is_on_host { &state.now } else { &state.taken };
        counters.accepted = counted.accepted;
        counters.emitted = counted.emitted;
        Ok(Snapshot::Landed)
    }
}
