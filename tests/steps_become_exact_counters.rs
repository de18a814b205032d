//! Steps whose counts are in the span's fields become exact OpenTelemetry counters, with no other call.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::{Device, Exported, Stack, anomaly, of_engine, of_position, of_steps, set_default};
use tracing_spec_decode::{HostCounters, builder, step_span};

#[test]
fn a_step_with_late_records_is_counted_at_its_close() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));

    assert!(exported.collect().is_empty(), "nothing exists before the first step");
    for accepted in [5, 2, 0] {
        let span = step_span!(num_spec_tokens = 5, num_drafts = 1);
        let step = span.enter();
        span.record("num_accepted_tokens", accepted);
        span.record("num_emitted_tokens", accepted + 1);
        drop(step);
    }
    drop(step_span!(num_spec_tokens = 0));
    handle.flush(Duration::ZERO).unwrap();

    let points = exported.collect();
    assert_eq!(points[&of_engine("drafts")], 3.0);
    assert_eq!(points[&of_engine("draft_tokens")], 15.0);
    assert_eq!(points[&of_engine("accepted_tokens")], 7.0);
    assert_eq!(points[&of_engine("emitted_tokens")], 10.0);
    assert_eq!(points[&of_steps("steps", true)], 3.0);
    assert_eq!(points[&of_steps("steps", false)], 1.0);
    assert_eq!(points[&of_engine("draft_acceptance_rate")], 7.0 / 15.0);
    assert_eq!(points[&of_engine("system_efficiency")], 10.0 / 18.0);
    assert_eq!(points[&of_engine("mean_acceptance_length")], 1.0 + 7.0 / 3.0);
    assert_eq!(points[&of_engine("num_spec_tokens")], 5.0);
    assert_eq!(handle.status("0").steps, 4);
    assert_eq!(handle.status("0").open_steps, 0);
}

#[test]
fn an_incomplete_or_contradictory_step_is_an_anomaly_and_counts_no_tokens() {
    let exported = Exported::cumulative();
    let (_handle, _default) = set_default(builder().with_meter_provider(&exported.provider));

    drop(step_span!(num_spec_tokens = 5, num_drafts = 1));
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 5));
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = -1));
    drop(step_span!(num_spec_tokens = 2, num_drafts = 1, num_draft_tokens = 3, num_accepted_tokens = 3));
    drop(step_span!(num_draft_tokens = 3, num_accepted_tokens = 3));

    let points = exported.collect();
    assert_eq!(points[&of_engine("draft_tokens")], 0.0);
    assert_eq!(points[&anomaly("incomplete")], 2.0);
    assert_eq!(points[&anomaly("invalid_value")], 1.0);
    assert_eq!(points[&anomaly("accepted_exceeds_draft")], 1.0);
    assert_eq!(points[&anomaly("drafts_inconsistent")], 1.0);
    assert_eq!(points[&anomaly("drafts_unknown")], 1.0);
}

#[test]
fn counters_on_the_host_give_the_positions() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    let mut counters = HostCounters::new();
    let attached = handle.attach("0", counters.source()).unwrap();

    let span = step_span!(num_spec_tokens = 3, num_drafts = 3, num_draft_tokens = 8);
    span.in_scope(|| {
        for (drafted, accepted) in [(3, 3), (3, 1), (2, 0)] {
            counters.record_draft(drafted, accepted, accepted + 1);
        }
    });
    drop(span);

    let metrics = handle.metrics("0").unwrap();
    assert_eq!(metrics.draft_tokens, Some(8));
    assert_eq!(metrics.accepted_per_position, Some(vec![2, 1, 1]));
    assert_eq!(metrics.draft_per_position, Some(vec![3, 3, 2]));
    let points = exported.collect();
    let position = |name: &str, position: usize| points[&of_position(name, position)];
    assert_eq!([0, 1, 2].map(|at| position("accepted_tokens_per_position", at)), [2.0, 1.0, 1.0]);
    assert_eq!([0, 1, 2].map(|at| position("draft_tokens_per_position", at)), [3.0, 3.0, 2.0]);
    drop(attached);
}

#[test]
fn what_a_source_on_the_host_has_counted_is_out_at_the_next_close_whatever_the_fields_say() {
    let stack = Stack::new();
    let mut counters = HostCounters::new();
    let _attached = stack.handle.attach("0", counters.source()).unwrap();
    for drafts in 1..=3 {
        assert!(counters.record_draft(4, 2, 3));
        drop(step_span!(num_spec_tokens = 0));
        let points = stack.collect();
        assert_eq!(
            (points[&of_engine("drafts")], points[&of_engine("draft_tokens")]),
            (drafts.into(), f64::from(4 * drafts))
        );
    }
}

#[test]
fn counters_on_the_host_without_drafts_are_marked_only_where_steps_overlap() {
    let stack = Stack::new();
    let device = Device::default();
    let _attached = stack.handle.attach("0", device.source_on_host()).unwrap();
    let overlaps = || stack.collect().get(&anomaly("overlap")).copied().unwrap_or_default();
    let counts = || ["drafts", "accepted_tokens", "emitted_tokens"].map(|name| stack.collect()[&of_engine(name)]);
    let step = || step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1);
    for steps in [1.0, 2.0, 3.0] {
        step().in_scope(|| device.add(2, 3));
        assert_eq!((counts(), overlaps()), ([steps, 2.0 * steps, 3.0 * steps], 0.0));
    }
    let (first, second) = (step(), step());
    first.in_scope(|| device.add(4, 5));
    second.in_scope(|| device.add(4, 5));
    drop(first);
    assert_eq!((counts()[0], overlaps()), (4.0, 1.0), "the second step's tokens are there, its draft is not");
    drop(second);
    assert_eq!((counts(), overlaps()), ([5.0, 14.0, 19.0], 1.0));
}

#[test]
fn engines_are_told_apart_by_name_and_other_ranks_are_ignored() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    for (engine, accepted) in [("a", 1), ("b", 2)] {
        for rank in [0, 1] {
            drop(step_span!(
                engine = engine,
                rank = rank,
                num_spec_tokens = 4,
                num_drafts = 1,
                num_accepted_tokens = accepted
            ));
        }
    }
    drop(step_span!(engine = "", num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 1));
    drop(step_span!(engine = 7, num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 3));
    assert_eq!(handle.metrics("a").unwrap().accepted_tokens, Some(1));
    assert_eq!(handle.metrics("b").unwrap().accepted_tokens, Some(2));
    assert_eq!(handle.metrics("7").unwrap().accepted_tokens, Some(3));
    assert_eq!(handle.metrics("0"), None);
    let points = exported.collect();
    assert_eq!(points["spec_decode.anomalies{spec_decode.anomaly.type=engine_refused}"], 1.0);
}

#[test]
fn a_step_with_nothing_but_discarded_tokens_and_a_refused_value_counts_both() {
    let (handle, _default) = set_default(builder());
    drop(tracing::info_span!("spec_decode_step", num_discarded_draft_tokens = 5, num_drafts = -1));
    let totals = &handle.totals().engines[0];
    assert_eq!((totals.plain_steps.steps, totals.discarded_draft_tokens), (1, Some(5)));
    assert_eq!(totals.anomalies, [("invalid_value", 1)]);
}
