//! What the adapter in `examples/metrics_crate.rs` renders is what a scrape of the OpenTelemetry metrics shows: the same
//! series, by name and labels, with the same numbers and the same help.
#![allow(missing_docs, unreachable_pub)]

mod support;

#[path = "../examples/metrics_crate.rs"]
#[allow(dead_code, reason = "its `main`")]
mod metrics_crate;

use std::collections::BTreeMap;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Encoder, TextEncoder};
use support::{Device, set_default};
use tracing::info_span;
use tracing_spec_decode::source::{Busy, SourceError};
use tracing_spec_decode::{EngineAttributes, HostCounters, builder, step_span};

/// The counters of a scrape: series by name and sorted labels, and the help by name. The time of the collections is in
/// no totals.
fn counters(text: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    let is_ours = |name: &str| {
        name.starts_with("spec_decode_") && name.ends_with("_total") && !name.contains("_collection_time_")
    };
    let (mut series, mut help) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some((name, text)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            help.extend(is_ours(name).then(|| (name.to_owned(), text.to_owned())));
        } else if let Some((name, rest)) = line.split_once('{').filter(|(name, _)| is_ours(name)) {
            let (labels, value) = rest.rsplit_once("} ").unwrap();
            let mut labels: Vec<_> = labels.split(',').filter(|label| !label.starts_with("otel_scope")).collect();
            labels.sort_unstable();
            series.insert(format!("{name}{{{}}}", labels.join(",")), value.parse().unwrap());
        }
    }
    (series, help)
}

#[test]
fn every_series_of_every_engine_kind_position_and_anomaly() {
    let registry = prometheus::Registry::new();
    let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).build().unwrap();
    let provider = SdkMeterProvider::builder().with_reader(exporter).build();
    let (clock, mock) = quanta::Clock::mock();
    let builder = builder().with_clock(clock).with_interval(Duration::ZERO).with_max_engines(3);
    let (handle, _default) = set_default(builder.with_meter_provider(&provider));
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = || {
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        counters(&String::from_utf8(text).unwrap())
    };
    let rendered = || {
        metrics::with_local_recorder(&recorder, || metrics_crate::publish(&handle.totals()));
        counters(&recorder.handle().render())
    };
    metrics::with_local_recorder(&recorder, metrics_crate::describe);

    // By position, with attributes; from fields, with anomalies; from a device, with copies of each outcome.
    let mut on_host = HostCounters::new();
    let attributes = EngineAttributes::new().with_model("target").with_method("eagle").with_draft_model("draft");
    handle.describe("on the host", attributes).unwrap();
    let device = Device::default();
    let attached = [
        handle.attach("on the host", on_host.source()).unwrap(),
        handle.attach("on a device", device.source()).unwrap(),
    ];
    for round in 0..3 {
        step_span!(engine = "on the host", num_spec_tokens = 4, num_sequences = 5, num_tokens = 9).in_scope(|| {
            info_span!("spec_decode_draft").in_scope(|| mock.increment(Duration::from_millis(3)));
            info_span!("spec_decode_verify").in_scope(|| mock.increment(Duration::from_millis(20)));
        });
        on_host.record_draft(4, 3 - round, 4 - round);
        drop(step_span!(engine = "fields", num_spec_tokens = 4, num_drafts = 2, num_discarded_draft_tokens = 3));
        drop(step_span!(engine = "fields", num_draft_tokens = 4, num_drafts = 2, num_accepted_tokens = 5));
        drop(step_span!(engine = "fields", num_drafts = 1, num_draft_tokens = 2, num_accepted_tokens = 1));
        drop(step_span!(engine = "fields", num_drafts = 0));
        device.add(5, 7);
        device.fail_with((round == 0).then_some(SourceError::Busy(Busy::Capturing)));
        step_span!(engine = "on a device", num_spec_tokens = 4, num_drafts = 2).in_scope(|| {});
        drop(step_span!(engine = "one too many", num_drafts = 0));
        // Published each time, to see that nothing is counted twice.
        assert_eq!(rendered().0, scraped().0, "round {round}");
    }
    device.fail_with(None);
    handle.flush(Duration::from_secs(5)).unwrap();

    let (series, help) = rendered();
    assert_eq!((&series, &help), (&scraped().0, &scraped().1));
    for (name, labels, value) in [
        ("steps", r#"spec_decode_drafted="false",spec_decode_engine="fields""#, 3.0),
        ("accepted_tokens", r#"spec_decode_engine="on a device""#, 15.0),
        ("anomalies", r#"spec_decode_anomaly_type="accepted_exceeds_draft",spec_decode_engine="fields""#, 3.0),
        ("anomalies", r#"spec_decode_anomaly_type="engine_refused""#, 3.0),
        (
            "collections",
            r#"error_type="capturing",spec_decode_collection_outcome="skipped",spec_decode_engine="on a device""#,
            1.0,
        ),
        (
            "draft_tokens_per_position",
            "spec_decode_draft_model=\"draft\",spec_decode_engine=\"on the host\",spec_decode_method=\"eagle\",\
             spec_decode_model=\"target\",spec_decode_position=\"3\"",
            3.0,
        ),
        (
            "verify_time_seconds",
            "spec_decode_draft_model=\"draft\",spec_decode_engine=\"on the host\",spec_decode_method=\"eagle\",\
             spec_decode_model=\"target\"",
            0.06,
        ),
    ] {
        assert_eq!(series.get(&format!("spec_decode_{name}_total{{{labels}}}")), Some(&value), "{name}: {series:#?}");
    }
    drop(attached);
}
