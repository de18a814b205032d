//! Guards, children, overlapping steps and spans that are never entered: each counts once and copies when it may.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::{Device, Exported, of_engine};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

const OVERLAP: &str = "spec_decode.anomalies{spec_decode.anomaly.type=overlap,spec_decode.engine=0}";

#[test]
fn a_child_that_outlives_the_step_delays_the_sample_until_the_step_closes() {
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder().with_clock(clock).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();

    mock.increment(Duration::from_secs(6));
    let first = step_span!(num_spec_tokens = 4, num_drafts = 1);
    let child = first.in_scope(|| tracing::info_span!("child"));
    device.add(3, 4);
    first.in_scope(|| {});
    drop(first);
    assert_eq!(handle.metrics("0").unwrap().draft_tokens.unwrap_or_default(), 0);
    drop(child);
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1));
    handle.flush(Duration::from_secs(1)).unwrap();
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(8), Some(3)));
}

#[test]
fn a_sample_taken_while_another_step_is_inside_is_marked_and_never_shows_too_much() {
    let exported = Exported::cumulative();
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder().with_clock(clock).with_meter_provider(&exported.provider).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();

    mock.increment(Duration::from_secs(6));
    let one = step_span!(num_spec_tokens = 4, num_drafts = 1);
    let other = step_span!(num_spec_tokens = 4, num_drafts = 1);
    let in_one = one.enter();
    let in_other = other.enter();
    device.add(8, 10);
    drop(in_one);
    drop(one);
    drop(in_other);
    drop(other);
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {});
    let points = exported.collect();
    assert_eq!(points[OVERLAP], 1.0);
    assert!(points[&of_engine("accepted_tokens")] <= points[&of_engine("draft_tokens")]);
    assert!(!points.contains_key(&of_engine("draft_acceptance_rate")), "it ends no window");

    handle.flush(Duration::from_secs(1)).unwrap();
    let points = exported.collect();
    assert_eq!((points[&of_engine("accepted_tokens")], points[&of_engine("draft_tokens")]), (8.0, 12.0));
}

#[test]
fn a_span_that_is_never_entered_begins_and_ends_at_its_close() {
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder().with_clock(clock).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();
    mock.increment(Duration::from_secs(6));
    device.add(2, 3);
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1));
    assert_eq!(device.starts(), 2, "the zero and one copy");
    drop(step_span!(num_spec_tokens = 0));
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(4), Some(2)));
}

#[test]
fn steps_over_the_bound_are_counted_as_lost_and_the_others_go_on() {
    let (layer, handle) = builder().with_max_open_steps(2).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let open: Vec<_> = (0..3).map(|_| step_span!(num_spec_tokens = 0)).collect();
    assert_eq!(handle.status("0").open_steps, 2);
    drop(open);
    drop(step_span!(num_spec_tokens = 0));
    assert_eq!(handle.status("0").steps, 3);
    assert_eq!(handle.totals().anomalies, [("open_steps_over_bound", 1)]);
}
