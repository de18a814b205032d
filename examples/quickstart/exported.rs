//! What left by OpenTelemetry, as the in-memory exporter received it.

use std::fmt;

use opentelemetry::KeyValue;
use opentelemetry_sdk::metrics::InMemoryMetricExporter;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData};
use serde_json::Value;

/// One value of one metric.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) name: String,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) is_counter: bool,
    pub(crate) value: Number,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Number {
    Whole(u64),
    Real(f64),
}

impl Point {
    /// The draft position that it is about, where it is about one.
    pub(crate) fn position(&self) -> Option<u64> {
        let position = self.attributes.iter().find(|(key, _)| key == "spec_decode.position");
        position.and_then(|(_, value)| value.parse().ok())
    }
}

impl Number {
    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => Self::Whole(one + other),
            (one, other) => Self::Real(one.as_f64() + other.as_f64()),
        }
    }

    fn as_f64(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        match number {
            Number::Whole(whole) => whole.into(),
            Number::Real(real) => real.into(),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => whole.fmt(f),
            Self::Real(real) => write!(f, "{real:.4}"),
        }
    }
}

/// The points of the last export, metric by metric.
pub(crate) fn last_export(exporter: &InMemoryMetricExporter) -> Vec<Point> {
    let exports = exporter.get_finished_metrics().unwrap_or_default();
    let metrics =
        exports.last().into_iter().flat_map(|export| export.scope_metrics()).flat_map(|scope| scope.metrics());
    metrics.flat_map(points).collect()
}

fn points(metric: &Metric) -> Vec<Point> {
    let mut points = match metric.data() {
        AggregatedMetrics::U64(data) => data_points(metric.name(), data, Number::Whole),
        AggregatedMetrics::F64(data) => data_points(metric.name(), data, Number::Real),
        AggregatedMetrics::I64(data) => data_points(metric.name(), data, |value| Number::Real(value as f64)),
    };
    points.sort_by_cached_key(|point| (point.position(), point.attributes.clone()));
    points
}

fn data_points<T: Copy>(name: &str, data: &MetricData<T>, number: impl Fn(T) -> Number) -> Vec<Point> {
    let point = |value, attributes: Vec<&KeyValue>, is_counter| {
        let pair = |pair: &KeyValue| (pair.key.to_string(), pair.value.to_string());
        let mut attributes: Vec<_> = attributes.into_iter().map(pair).collect();
        attributes.sort();
        Point { name: name.to_owned(), attributes, is_counter, value: number(value) }
    };
    match data {
        MetricData::Sum(sum) => {
            sum.data_points().map(|it| point(it.value(), it.attributes().collect(), true)).collect()
        }
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|it| point(it.value(), it.attributes().collect(), false)).collect()
        }
        // The layer has no histograms.
        MetricData::Histogram(_) | MetricData::ExponentialHistogram(_) => Vec::new(),
    }
}

/// Each metric's value: an array where it has draft positions, else its points added up.
pub(crate) fn by_name<'a>(points: impl Iterator<Item = &'a Point>) -> serde_json::Map<String, Value> {
    let mut values = serde_json::Map::new();
    let mut sums: Vec<(&str, Number)> = Vec::new();
    for point in points {
        if point.position().is_some() {
            let positions = values.entry(point.name.clone()).or_insert_with(|| Value::Array(Vec::new()));
            positions.as_array_mut().into_iter().for_each(|positions| positions.push(point.value.into()));
        } else if let Some((_, sum)) = sums.iter_mut().find(|(name, _)| *name == point.name) {
            *sum = sum.plus(point.value);
        } else {
            sums.push((&point.name, point.value));
        }
    }
    values.extend(sums.into_iter().map(|(name, sum)| (name.to_owned(), sum.into())));
    values
}
