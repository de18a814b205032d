//! What the builder and the handle refuse is a typed error with a sentence; what is over a bound is counted.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::{Device, Exported, anomaly, stack_of};
use tracing_spec_decode::source::{Dead, SourceError};
use tracing_spec_decode::{
    AttachError, BuildError, Builder, DescribeError, EngineAttributes, HostCounters, builder, step_span,
};
use tracing_subscriber::Registry;

fn refusal(builder: Builder<'_>) -> Option<BuildError> {
    builder.build::<Registry>().err()
}

#[test]
fn the_builder_says_which_setting_is_out_of_bounds() {
    let day = Duration::from_secs(24 * 60 * 60);
    for (builder, expected) in [
        (builder(), None),
        (builder().with_span_name(""), Some(BuildError::SpanName)),
        (builder().with_interval(Duration::ZERO), None),
        (builder().with_interval(day), None),
        (builder().with_interval(day + Duration::from_nanos(1)), Some(BuildError::Interval)),
        (builder().with_interval(Duration::MAX), Some(BuildError::Interval)),
        (builder().with_max_engines(0), Some(BuildError::Engines)),
        (builder().with_max_engines(usize::MAX), Some(BuildError::Engines)),
        (builder().with_max_engines(125), None),
        (builder().with_max_engines(126), Some(BuildError::Engines)),
        (builder().with_max_positions(0).with_max_engines(2_000), None),
        (builder().with_max_positions(usize::MAX), Some(BuildError::Engines)),
        (builder().with_max_open_steps(0), Some(BuildError::OpenSteps)),
        (builder().with_max_open_steps(65_536), None),
        (builder().with_max_open_steps(65_537), Some(BuildError::OpenSteps)),
        (builder().with_rank(u32::MAX), None),
    ] {
        let what = format!("{builder:?}");
        let refused = refusal(builder);
        assert_eq!(refused, expected, "{what}");
        assert!(refused.is_none_or(|error| !error.to_string().is_empty() && !error.to_string().contains('\n')));
    }
}

#[test]
fn another_rank_makes_the_layer_inert() {
    let exported = Exported::cumulative();
    let (stack, handle) = stack_of(builder().with_rank(1).with_meter_provider(&exported.provider));
    tracing::dispatcher::with_default(&stack, || {
        drop(step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 3));
    });
    assert_eq!((handle.metrics("0"), handle.status("0").steps), (None, 0));
    assert!(exported.collect().is_empty());
}

#[test]
fn another_name_of_the_span_is_the_only_one() {
    let (stack, handle) = stack_of(builder().with_span_name("verify"));
    tracing::dispatcher::with_default(&stack, || {
        drop(step_span!(num_drafts = 0));
        drop(tracing::trace_span!(target: "elsewhere", "verify", num_drafts = 0));
    });
    assert_eq!(handle.status("0").steps, 1);
}

#[test]
fn engines_over_the_bound_are_refused_and_the_others_go_on() {
    let exported = Exported::cumulative();
    let (stack, handle) = stack_of(builder().with_max_engines(2).with_meter_provider(&exported.provider));
    tracing::dispatcher::with_default(&stack, || {
        for engine in [0, 1, 2, 3, 1, 0] {
            drop(step_span!(engine, num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 1));
        }
    });
    assert_eq!([0, 1, 2, 3].map(|engine| handle.status(&engine.to_string()).steps), [2, 2, 0, 0]);
    assert_eq!(exported.collect()["spec_decode.anomalies{spec_decode.anomaly.type=engine_refused}"], 2.0);
    assert_eq!(handle.describe("more", EngineAttributes::new()), Err(DescribeError::TooManyEngines));
    let refused = handle.attach("more", Device::default().source()).unwrap_err();
    assert_eq!(refused, AttachError::TooManyEngines);
}

#[test]
fn an_engine_is_described_before_its_steps_and_once() {
    let exported = Exported::cumulative();
    let (stack, handle) = stack_of(builder().with_meter_provider(&exported.provider));
    let attributes = || {
        let attributes = EngineAttributes::new().with_model("first").with_model("target").with_draft_model("small");
        attributes.with_num_spec_tokens(5).with_draft_model_revision("abc")
    };
    handle.describe("early", attributes()).unwrap();
    tracing::dispatcher::with_default(&stack, || {
        drop(step_span!(engine = "early", num_drafts = 0));
        drop(step_span!(engine = "late", num_drafts = 0));
    });
    let attached = handle.attach("source", Device::default().source()).unwrap();
    for engine in ["early", "late", "source"] {
        assert_eq!(handle.describe(engine, attributes()), Err(DescribeError::Known), "{engine}");
    }
    for name in ["", &"x".repeat(65)] {
        assert_eq!(handle.describe(name, attributes()), Err(DescribeError::Name));
        assert_eq!(handle.attach(name, Device::default().source()).unwrap_err(), AttachError::Name);
    }
    assert_eq!(handle.attach("source", Device::default().source()).unwrap_err(), AttachError::Attached);
    drop(attached);
    drop(handle.attach("source", Device::default().source()).unwrap());
    let attributes = "spec_decode.draft_model=small,spec_decode.engine=early,spec_decode.model=target";
    let points = exported.collect();
    assert_eq!(points[&format!("spec_decode.drafts{{{attributes}}}")], 0.0);
    let info = "spec_decode.info{spec_decode.draft_model=small,spec_decode.draft_model_revision=abc,\
                spec_decode.engine=early,spec_decode.model=target,spec_decode.num_spec_tokens=5,spec_decode.version=";
    assert!(points.iter().any(|(name, one)| name.starts_with(info) && *one == 1.0), "{points:?}");
    assert_eq!(points.keys().filter(|name| name.contains("revision")).count(), 1, "no other metric carries it");
}

#[test]
fn a_source_whose_zero_can_not_be_read_is_not_attached_and_leaves_the_place_free() {
    let (_, handle) = stack_of(builder());
    let device = Device::default();
    device.fail_with(Some(SourceError::Dead(Dead::DeviceLost)));
    let refused = handle.attach("0", device.source()).unwrap_err();
    assert_eq!(refused, AttachError::Source(SourceError::Dead(Dead::DeviceLost)));
    assert_eq!(refused.to_string(), "the source's zero could not be read: the device is lost");
    device.fail_with(None);
    drop(handle.attach("0", device.source()).unwrap());
}

#[test]
fn tokens_at_positions_over_the_bound_are_in_the_totals_and_are_counted() {
    let exported = Exported::cumulative();
    let (stack, handle) = stack_of(builder().with_max_positions(2).with_meter_provider(&exported.provider));
    let mut counters = HostCounters::with_positions(4);
    let attached = handle.attach("0", counters.source()).unwrap();
    tracing::dispatcher::with_default(&stack, || {
        step_span!(num_spec_tokens = 2, num_drafts = 1).in_scope(|| counters.record_draft(2, 2, 3));
        assert!(!exported.collect().contains_key(&anomaly("position_over_bound")));
        step_span!(num_spec_tokens = 6, num_drafts = 1).in_scope(|| counters.record_draft(6, 5, 6));
    });
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(8), Some(7)));
    assert_eq!(metrics.draft_per_position, Some(vec![2, 2]));
    let points = exported.collect();
    assert_eq!(points[&anomaly("position_over_bound")], 1.0);
    assert_eq!(points.keys().filter(|name| name.starts_with("spec_decode.draft_tokens_per_position")).count(), 2);
    drop(attached);
}
