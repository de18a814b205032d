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

/// A layer with a device on engine 0, an interval after the attach, so that a copy is due.
struct Due {
    exported: Exported,
    handle: tracing_spec_decode::Handle,
    mock: std::sync::Arc<quanta::Mock>,
    device: Device,
    attached: Option<tracing_spec_decode::Attached>,
    _default: tracing::subscriber::DefaultGuard,
}

impl Due {
    fn new() -> Self {
        let exported = Exported::cumulative();
        let (clock, mock) = quanta::Clock::mock();
        let (layer, handle) = builder().with_clock(clock).with_meter_provider(&exported.provider).build().unwrap();
        let default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let device = Device::default();
        let attached = handle.attach("0", device.source()).unwrap();
        mock.increment(Duration::from_secs(6));
        Self { exported, handle, mock, device, attached: Some(attached), _default: default }
    }

    /// Copies started since the attach.
    fn copies(&self) -> usize {
        self.device.starts() - 1
    }

    /// Draft tokens and accepted tokens as last published.
    fn published(&self) -> (u64, u64) {
        let metrics = self.handle.metrics("0").unwrap();
        (metrics.draft_tokens.unwrap_or(0), metrics.accepted_tokens.unwrap_or(0))
    }

    fn collections(&self, outcome: &str) -> f64 {
        let points = self.exported.collect();
        let all = points.iter().filter(|(name, _)| name.starts_with("spec_decode.collections{"));
        all.filter(|(name, _)| name.contains(outcome)).map(|(_, count)| count).sum()
    }
}

fn step() -> tracing::Span {
    step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1)
}

#[test]
fn a_step_entered_again_after_the_copy_started_makes_the_copy_void_and_the_next_starts_at_close() {
    let due = Due::new();
    let first = step();
    first.in_scope(|| due.device.add(1, 2));
    assert_eq!(due.copies(), 1, "started at the exit");
    first.in_scope(|| due.device.add(2, 2));
    drop(first);
    assert_eq!((due.copies(), due.published()), (1, (0, 0)), "half a step is not published");
    let second = step();
    second.in_scope(|| due.device.add(3, 4));
    assert_eq!((due.collections("half_step"), due.copies()), (1.0, 1), "void, and not started at an exit any more");
    drop(second);
    assert_eq!(due.copies(), 2, "the void copy did not put the next one off");
    step().in_scope(|| {});
    assert_eq!(due.published(), (8, 6));
    assert_eq!(due.collections("resolved"), 1.0);
}

#[test]
fn a_copy_is_void_as_well_if_a_step_goes_on_that_was_left_before_it_started() {
    let due = Due::new();
    step().in_scope(|| {});
    due.handle.flush(Duration::from_secs(1)).unwrap();
    assert_eq!(due.published(), (4, 0));
    let left = step();
    left.in_scope(|| due.device.add(1, 2));
    due.mock.increment(Duration::from_secs(6));
    step().in_scope(|| due.device.add(3, 4));
    left.in_scope(|| due.device.add(2, 2));
    drop(left);
    step().in_scope(|| {});
    assert_eq!((due.published(), due.collections("half_step")), ((4, 0), 1.0));
    due.handle.flush(Duration::from_secs(1)).unwrap();
    assert_eq!(due.published(), (16, 6));
}

#[test]
fn a_step_that_stays_open_is_waited_for_one_interval_and_then_taken_as_it_is() {
    let due = Due::new();
    let kept = step();
    kept.in_scope(|| due.device.add(3, 4));
    assert_eq!(due.copies(), 1);
    for _ in 0..4 {
        due.mock.increment(Duration::from_secs(1));
        step().in_scope(|| {});
        assert_eq!(due.published(), (0, 0), "it waits");
    }
    due.mock.increment(Duration::from_secs(2));
    step().in_scope(|| {});
    assert_eq!(due.published(), (4, 3), "taken as it was");
    // What the step gives later is the difference, and counts once.
    kept.record("num_draft_tokens", 4);
    kept.record("num_drafts", 2);
    drop(kept);
    due.handle.flush(Duration::from_secs(1)).unwrap();
    let metrics = due.handle.metrics("0").unwrap();
    assert_eq!((metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens), (Some(7), Some(24), Some(3)));
}

#[test]
fn a_step_taken_by_two_samples_counts_once() {
    let due = Due::new();
    let kept = step();
    kept.in_scope(|| due.device.add(3, 4));
    for _ in 0..6 {
        due.mock.increment(Duration::from_secs(6));
        step().in_scope(|| {});
    }
    assert!(due.collections("resolved") >= 2.0);
    drop(kept);
    due.handle.flush(Duration::from_secs(1)).unwrap();
    assert_eq!(due.published(), (7 * 4, 3));
}

#[test]
fn while_steps_are_futures_one_that_has_been_entered_and_not_closed_is_an_overlap() {
    let due = Due::new();
    let future = step();
    future.in_scope(|| {});
    future.in_scope(|| {});
    drop(future);
    step().in_scope(|| {});
    due.handle.flush(Duration::from_secs(1)).unwrap();
    due.mock.increment(Duration::from_secs(6));
    let suspended = step();
    suspended.in_scope(|| due.device.add(3, 4));
    step().in_scope(|| due.device.add(1, 2));
    step().in_scope(|| {});
    let points = due.exported.collect();
    assert_eq!(points[OVERLAP], 1.0, "the copy holds what the suspended step has done so far");
    drop(suspended);
    due.handle.flush(Duration::from_secs(1)).unwrap();
    assert_eq!(due.published(), (5 * 4, 4));
}

#[test]
fn a_detach_drops_what_is_in_no_sample_on_both_sides_and_counts_it_as_lost() {
    let mut due = Due::new();
    step().in_scope(|| due.device.add(3, 4));
    step().in_scope(|| due.device.add(3, 4));
    due.handle.flush(Duration::from_secs(1)).unwrap();
    step().in_scope(|| due.device.add(2, 3));
    due.attached = None;
    assert_eq!((due.published(), due.collections("lost")), ((8, 6), 1.0));
    due.attached = Some(due.handle.attach("0", due.device.source()).unwrap());
    step().in_scope(|| due.device.add(1, 2));
    due.handle.flush(Duration::from_secs(1)).unwrap();
    assert_eq!(due.exported.collect()[&of_engine("draft_tokens")], 12.0, "nothing of before the detach");
    assert_eq!(due.exported.collect()[&of_engine("accepted_tokens")], 7.0);
    due.attached = None;
    assert_eq!(due.collections("lost"), 1.0, "after a flush nothing is lost");
}

#[test]
fn a_failed_copy_gives_its_steps_back() {
    let due = Due::new();
    due.device.land_after(1);
    step().in_scope(|| due.device.add(3, 4));
    assert_eq!(due.copies(), 1);
    use tracing_spec_decode::source::{Failed, SourceError};
    due.device.fail_with(Some(SourceError::Failed(Failed::Driver(2))));
    step().in_scope(|| due.device.add(3, 4));
    assert_eq!((due.published(), due.collections("failed")), ((0, 0), 1.0));
    due.device.fail_with(None);
    due.handle.flush(Duration::from_secs(1)).unwrap();
    assert_eq!(due.published(), (8, 6));
}

#[test]
fn what_an_open_step_was_accepted_waits_for_its_drafts() {
    let due = Due::new();
    let kept = tracing::info_span!(
        parent: None,
        "spec_decode_step",
        num_spec_tokens = tracing::field::Empty,
        num_drafts = tracing::field::Empty
    );
    kept.in_scope(|| due.device.add(3, 4));
    for _ in 0..2 {
        due.mock.increment(Duration::from_secs(6));
        step().in_scope(|| {});
    }
    assert_eq!(due.collections("resolved"), 1.0);
    let points = due.exported.collect();
    assert_eq!((points[&of_engine("accepted_tokens")], points[&of_engine("draft_tokens")]), (0.0, 0.0));
    kept.record("num_spec_tokens", 4);
    kept.record("num_drafts", 1);
    drop(kept);
    due.handle.flush(Duration::from_secs(1)).unwrap();
    assert_eq!(due.published(), (3 * 4, 3));
}

#[test]
fn fields_that_change_between_two_samples_that_took_them_count_whole() {
    let due = Due::new();
    let kept = step_span!(parent: None, num_drafts = 1, num_draft_tokens = 4);
    kept.in_scope(|| due.device.add(4, 5));
    let resolve = || {
        due.mock.increment(Duration::from_secs(6));
        due.handle.poll("0");
    };
    due.handle.poll("0");
    resolve();
    assert_eq!(due.published(), (4, 4), "taken by the first sample");
    kept.record("num_drafts", 2);
    kept.record("num_draft_tokens", 8);
    (0..4).for_each(|_| resolve());
    assert!(due.collections("resolved") >= 2.0);
    drop(kept);
    due.handle.flush(Duration::from_secs(1)).unwrap();
    let metrics = due.handle.metrics("0").unwrap();
    assert_eq!((metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens), (Some(2), Some(8), Some(4)));
}
