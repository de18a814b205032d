//! A rebase is for after a flush. Without one, what was in no sample by then is counted after it, drafts and accepted
//! tokens alike: rates are those of steps that ran, and counters go on.
#![allow(missing_docs)]

mod support;

use support::{Device, Points, Stack, of_engine};
use tracing_spec_decode::{HostCounters, SpecDecodeMetrics, step_span};

/// The same of each source of counts: draft tokens and accepted tokens since the rebase, and the rate of the window.
fn since_rebase(stack: &Stack, points: &Points) -> (Option<u64>, Option<u64>, Option<f64>) {
    let metrics = stack.metrics();
    (metrics.draft_tokens, metrics.accepted_tokens, points.get(&of_engine("draft_acceptance_rate")).copied())
}

/// A step with four draft tokens, three of them accepted, which says so by the fields.
fn by_fields() -> tracing::Span {
    step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 3)
}

#[test]
fn in_the_middle_of_a_step_that_a_sample_has_half_of() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(3, 4));
    stack.flush();

    let half = step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1);
    let inside = half.enter();
    device.add(3, 4);
    stack.pass(6_000);
    step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(1, 2));
    stack.handle.poll("0");
    assert_eq!(stack.handle.totals().engines[0].accepted_tokens, 7, "a sample with the half step in it is published");
    stack.handle.rebase("0");
    drop(inside);
    drop(half);
    stack.flush();
    let points = stack.collect();
    assert_eq!(since_rebase(&stack, &points), (Some(8), Some(4), Some(0.5)), "both steps, as in no whole sample");
    assert_eq!((points[&of_engine("draft_tokens")], points[&of_engine("accepted_tokens")]), (12.0, 7.0));
}

#[test]
fn while_a_copy_is_in_flight() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    let step = |accepted| {
        step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(accepted, accepted + 1));
    };
    step(0);
    stack.flush();
    device.land_after(usize::MAX);
    stack.pass(6_000);
    step(4);
    stack.handle.rebase("0");
    device.land();
    device.land_after(0);
    step(1);
    stack.flush();
    let points = stack.collect();
    assert_eq!(since_rebase(&stack, &points), (Some(8), Some(5), Some(0.625)), "the void copy's step comes with it");
    assert_eq!((points[&of_engine("draft_tokens")], points[&of_engine("accepted_tokens")]), (12.0, 5.0));
}

#[test]
fn in_the_middle_of_a_step_counted_by_fields() {
    let stack = Stack::new();
    by_fields().in_scope(|| ());
    by_fields().in_scope(|| stack.handle.rebase("0"));
    stack.flush();
    let points = stack.collect();
    assert_eq!(since_rebase(&stack, &points), (Some(4), Some(3), Some(0.75)));
    assert_eq!((points[&of_engine("draft_tokens")], points[&of_engine("accepted_tokens")]), (8.0, 6.0));
}

#[test]
fn in_the_middle_of_a_step_counted_on_the_host() {
    let stack = Stack::new();
    let mut counters = HostCounters::new();
    let _attached = stack.handle.attach("0", counters.source()).unwrap();
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| assert!(counters.record_draft(4, 3, 4)));
    step_span!(num_spec_tokens = 4, num_drafts = 2).in_scope(|| {
        assert!(counters.record_draft(4, 1, 2));
        stack.handle.rebase("0");
        assert!(counters.record_draft(4, 2, 3));
    });
    stack.flush();
    let points = stack.collect();
    assert_eq!(since_rebase(&stack, &points), (Some(8), Some(3), Some(0.375)));
    assert_eq!((points[&of_engine("draft_tokens")], points[&of_engine("accepted_tokens")]), (12.0, 6.0));
}

#[test]
fn before_a_sample_with_half_a_step_that_is_the_last() {
    let stack = Stack::new();
    let (device, attached) = stack.attach();
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(0, 1));
    stack.flush();
    stack.handle.rebase("0");
    let half = step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1);
    half.in_scope(|| {
        device.add(3, 4);
        stack.pass(6_000);
        step_span!(parent: None).in_scope(|| ());
        stack.handle.poll("0");
    });
    drop(half);
    drop(attached);
    let points = stack.collect();
    let (tokens, accepted, _) = since_rebase(&stack, &points);
    assert_eq!((tokens, accepted), (Some(0), Some(0)), "what was accepted is dropped with its drafts");
    assert_eq!((points[&of_engine("draft_tokens")], points[&of_engine("accepted_tokens")]), (4.0, 0.0));
}

#[test]
fn before_a_step_that_the_host_has_counted_half_of() {
    let stack = Stack::new();
    let device = Device::default();
    let _attached = stack.handle.attach("0", device.source_on_host()).unwrap();
    let step = || step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1);
    step().in_scope(|| device.add(0, 1));
    stack.handle.rebase("0");
    let half = step();
    half.in_scope(|| {
        device.add(3, 4);
        drop(step_span!(parent: None));
        let (tokens, accepted, _) = since_rebase(&stack, &stack.collect());
        assert_eq!((tokens, accepted), (Some(0), Some(0)), "what was accepted waits for its drafts");
    });
    drop(half);
    let points = stack.collect();
    let (tokens, accepted, _) = since_rebase(&stack, &points);
    assert_eq!((tokens, accepted), (Some(4), Some(3)));
    assert_eq!((points[&of_engine("draft_tokens")], points[&of_engine("accepted_tokens")]), (8.0, 3.0));
}

#[test]
fn behind_a_mark_of_a_source_on_the_host() {
    let stack = Stack::new();
    let device = Device::default();
    let _attached = stack.handle.attach("0", device.source_on_host()).unwrap();
    let step = || step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1);
    let long = step();
    let inside = long.enter();
    step().in_scope(|| device.add(0, 1));
    stack.handle.rebase("0");
    device.add(4, 5);
    step().in_scope(|| device.add(4, 5));
    let counts = |metrics: &SpecDecodeMetrics| [metrics.draft_tokens, metrics.accepted_tokens].map(|n| n.unwrap_or(0));
    assert_eq!(counts(&stack.metrics()), [0, 0], "it stays at the last sample without a mark");
    drop(inside);
    drop(long);
    assert_eq!(counts(&stack.metrics()), [12, 8]);
}
