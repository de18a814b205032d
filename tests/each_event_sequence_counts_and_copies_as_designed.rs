//! Guards, children, overlapping steps and spans that are never entered: each counts once and copies when it may.
#![allow(missing_docs)]

mod support;

use support::{Device, Stack, anomaly, of_engine, set_default};
use tracing_spec_decode::source::{Failed, SourceError};
use tracing_spec_decode::{Attached, builder, step_span};

/// A device on engine 0, whose next copy is due.
fn due() -> (Stack, Device, Attached) {
    let device = Device::default();
    let (stack, attached) = Stack::due(device.source());
    (stack, device, attached)
}

/// Copies started since the attach.
fn copies(device: &Device) -> usize {
    device.starts() - 1
}

/// Draft tokens and accepted tokens as last published.
fn published(stack: &Stack) -> (u64, u64) {
    let metrics = stack.metrics();
    (metrics.draft_tokens.unwrap_or(0), metrics.accepted_tokens.unwrap_or(0))
}

fn collections(stack: &Stack, outcome: &str) -> f64 {
    let points = stack.collect();
    let all = points.iter().filter(|(name, _)| name.starts_with("spec_decode.collections{"));
    all.filter(|(name, _)| name.contains(outcome)).map(|(_, count)| count).sum()
}

fn step() -> tracing::Span {
    step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1)
}

#[test]
fn a_child_that_outlives_the_step_delays_the_sample_until_the_step_closes() {
    let (stack, device, _attached) = due();

    let first = step_span!(num_spec_tokens = 4, num_drafts = 1);
    let child = first.in_scope(|| tracing::info_span!("child"));
    device.add(3, 4);
    first.in_scope(|| {});
    drop(first);
    assert_eq!(stack.metrics().draft_tokens.unwrap_or_default(), 0);
    drop(child);
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1));
    stack.flush();
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(8), Some(3)));
}

#[test]
fn a_sample_taken_while_another_step_is_inside_is_marked_and_never_shows_too_much() {
    let (stack, device, _attached) = due();

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
    let points = stack.collect();
    assert_eq!(points[&anomaly("overlap")], 1.0);
    assert!(points[&of_engine("accepted_tokens")] <= points[&of_engine("draft_tokens")]);
    assert!(!points.contains_key(&of_engine("draft_acceptance_rate")), "it ends no window");

    stack.flush();
    let points = stack.collect();
    assert_eq!((points[&of_engine("accepted_tokens")], points[&of_engine("draft_tokens")]), (8.0, 12.0));
}

#[test]
fn a_span_that_is_never_entered_begins_and_ends_at_its_close() {
    let (stack, device, _attached) = due();
    device.add(2, 3);
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1));
    assert_eq!(device.starts(), 2, "the zero and one copy");
    drop(step_span!(num_spec_tokens = 0));
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(4), Some(2)));
}

#[test]
fn steps_over_the_bound_are_counted_as_lost_and_the_others_go_on() {
    let (handle, _default) = set_default(builder().with_max_open_steps(2));
    let open: Vec<_> = (0..3).map(|_| step_span!(num_spec_tokens = 0)).collect();
    assert_eq!(handle.status("0").open_steps, 2);
    drop(open);
    drop(step_span!(num_spec_tokens = 0));
    assert_eq!(handle.status("0").steps, 3);
    assert_eq!(handle.totals().anomalies, [("open_steps_over_bound", 1)]);
}

#[test]
fn a_step_entered_again_after_the_copy_started_makes_the_copy_void_and_the_next_starts_at_close() {
    let (stack, device, _attached) = due();
    let first = step();
    first.in_scope(|| device.add(1, 2));
    assert_eq!(copies(&device), 1, "started at the exit");
    first.in_scope(|| device.add(2, 2));
    drop(first);
    assert_eq!((copies(&device), published(&stack)), (1, (0, 0)), "half a step is not published");
    let second = step();
    second.in_scope(|| device.add(3, 4));
    assert_eq!(
        (collections(&stack, "half_step"), copies(&device)),
        (1.0, 1),
        "void, and not started at an exit any more"
    );
    drop(second);
    assert_eq!(copies(&device), 2, "the void copy did not put the next one off");
    step().in_scope(|| {});
    assert_eq!(published(&stack), (8, 6));
    assert_eq!(collections(&stack, "resolved"), 1.0);
}

#[test]
fn a_copy_is_void_as_well_if_a_step_goes_on_that_was_left_before_it_started() {
    let (stack, device, _attached) = due();
    step().in_scope(|| {});
    stack.flush();
    assert_eq!(published(&stack), (4, 0));
    let left = step();
    left.in_scope(|| device.add(1, 2));
    stack.pass(6_000);
    step().in_scope(|| device.add(3, 4));
    left.in_scope(|| device.add(2, 2));
    drop(left);
    step().in_scope(|| {});
    assert_eq!((published(&stack), collections(&stack, "half_step")), ((4, 0), 1.0));
    stack.flush();
    assert_eq!(published(&stack), (16, 6));
}

#[test]
fn a_step_that_stays_open_is_waited_for_one_interval_and_then_taken_as_it_is() {
    let (stack, device, _attached) = due();
    let kept = step();
    kept.in_scope(|| device.add(3, 4));
    assert_eq!(copies(&device), 1);
    for _ in 0..4 {
        stack.pass(1_000);
        step().in_scope(|| {});
        assert_eq!(published(&stack), (0, 0), "it waits");
    }
    stack.pass(2_000);
    step().in_scope(|| {});
    assert_eq!(published(&stack), (4, 3), "taken as it was");
    // What the step gives later is the difference, and counts once.
    kept.record("num_draft_tokens", 4);
    kept.record("num_drafts", 2);
    drop(kept);
    stack.flush();
    let metrics = stack.metrics();
    assert_eq!((metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens), (Some(7), Some(24), Some(3)));
}

#[test]
fn a_step_taken_by_two_samples_counts_once() {
    let (stack, device, _attached) = due();
    let kept = step();
    kept.in_scope(|| device.add(3, 4));
    for _ in 0..6 {
        stack.pass(6_000);
        step().in_scope(|| {});
    }
    assert!(collections(&stack, "resolved") >= 2.0);
    drop(kept);
    stack.flush();
    assert_eq!(published(&stack), (7 * 4, 3));
}

#[test]
fn while_steps_are_futures_one_that_has_been_entered_and_not_closed_is_an_overlap() {
    let (stack, device, _attached) = due();
    let future = step();
    future.in_scope(|| {});
    future.in_scope(|| {});
    drop(future);
    step().in_scope(|| {});
    stack.flush();
    stack.pass(6_000);
    let suspended = step();
    suspended.in_scope(|| device.add(3, 4));
    step().in_scope(|| device.add(1, 2));
    step().in_scope(|| {});
    let points = stack.collect();
    assert_eq!(points[&anomaly("overlap")], 1.0, "the copy holds what the suspended step has done so far");
    drop(suspended);
    stack.flush();
    assert_eq!(published(&stack), (5 * 4, 4));
}

#[test]
fn a_detach_drops_what_is_in_no_sample_on_both_sides_and_counts_it_as_lost() {
    let (stack, device, attached) = due();
    step().in_scope(|| device.add(3, 4));
    step().in_scope(|| device.add(3, 4));
    stack.flush();
    step().in_scope(|| device.add(2, 3));
    drop(attached);
    assert_eq!((published(&stack), collections(&stack, "lost")), ((8, 6), 1.0));
    let attached = stack.handle.attach("0", device.source()).unwrap();
    step().in_scope(|| device.add(1, 2));
    stack.flush();
    assert_eq!(stack.collect()[&of_engine("draft_tokens")], 12.0, "nothing of before the detach");
    assert_eq!(stack.collect()[&of_engine("accepted_tokens")], 7.0);
    drop(attached);
    assert_eq!(collections(&stack, "lost"), 1.0, "after a flush nothing is lost");
}

#[test]
fn a_failed_copy_gives_its_steps_back() {
    let (stack, device, _attached) = due();
    device.land_after(1);
    step().in_scope(|| device.add(3, 4));
    assert_eq!(copies(&device), 1);
    device.fail_with(Some(SourceError::Failed(Failed::Driver(2))));
    step().in_scope(|| device.add(3, 4));
    assert_eq!((published(&stack), collections(&stack, "failed")), ((0, 0), 1.0));
    device.fail_with(None);
    stack.flush();
    assert_eq!(published(&stack), (8, 6));
}

#[test]
fn what_an_open_step_was_accepted_waits_for_its_drafts() {
    let (stack, device, _attached) = due();
    let kept = tracing::info_span!(
        parent: None,
        "spec_decode_step",
        num_spec_tokens = tracing::field::Empty,
        num_drafts = tracing::field::Empty
    );
    kept.in_scope(|| device.add(3, 4));
    for _ in 0..2 {
        stack.pass(6_000);
        step().in_scope(|| {});
    }
    assert_eq!(collections(&stack, "resolved"), 1.0);
    let points = stack.collect();
    assert_eq!((points[&of_engine("accepted_tokens")], points[&of_engine("draft_tokens")]), (0.0, 0.0));
    kept.record("num_spec_tokens", 4);
    kept.record("num_drafts", 1);
    drop(kept);
    stack.flush();
    assert_eq!(published(&stack), (3 * 4, 3));
}

#[test]
fn fields_that_change_between_two_samples_that_took_them_count_whole() {
    let (stack, device, _attached) = due();
    let kept = step_span!(parent: None, num_drafts = 1, num_draft_tokens = 4);
    kept.in_scope(|| device.add(4, 5));
    let resolve = || {
        stack.pass(6_000);
        stack.handle.poll("0");
    };
    stack.handle.poll("0");
    resolve();
    assert_eq!(published(&stack), (4, 4), "taken by the first sample");
    kept.record("num_drafts", 2);
    kept.record("num_draft_tokens", 8);
    (0..4).for_each(|_| resolve());
    assert!(collections(&stack, "resolved") >= 2.0);
    drop(kept);
    stack.flush();
    let metrics = stack.metrics();
    assert_eq!((metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens), (Some(2), Some(8), Some(4)));
}
