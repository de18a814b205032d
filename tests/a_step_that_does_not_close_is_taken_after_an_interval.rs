//! Something keeps a step open that a copy belongs to. The sample waits for it, one interval; then it takes the step's fields
//! as they are, and the close adds nothing twice.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::Stack;
use tracing_spec_decode::{builder, step_span};

#[test]
fn the_sample_waits_for_an_interval_and_no_longer() {
    let stack = Stack::of(builder().with_interval(Duration::from_secs(5)));
    let (device, _attached) = stack.attach();
    let published = || {
        let totals = &stack.handle.totals().engines[0];
        (totals.draft_tokens, totals.accepted_tokens)
    };
    let step = |accepted: u64| {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
        span.in_scope(|| device.add(accepted, accepted + 1));
        span
    };

    stack.pass(6_000);
    let kept = step(3);
    drop(step(2));
    assert_eq!(published(), (0, 0), "the copy has landed, and its step is open");
    stack.pass(4_999);
    drop(step(1));
    assert_eq!(published(), (0, 0), "not an interval yet");
    stack.pass(1);
    drop(step(0));
    assert_eq!(published(), (4, 3), "the step as it is, and what the copy holds");

    drop(kept);
    assert_eq!(published(), (4, 3));
    stack.flush();
    assert_eq!(published(), (16, 6));
}

#[test]
fn fields_that_change_after_they_were_taken_disagree_with_no_source() {
    let stack = Stack::of(builder().with_interval(Duration::from_secs(5)));
    let (device, _attached) = stack.attach();

    stack.pass(6_000);
    let kept = step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 1, num_emitted_tokens = 4);
    kept.in_scope(|| device.add(3, 4));
    stack.handle.poll("0");
    stack.pass(5_000);
    stack.handle.poll("0");
    assert_eq!(stack.handle.totals().engines[0].accepted_tokens, 3, "taken as it is");
    kept.record("num_accepted_tokens", 3);
    drop(kept);
    stack.flush();
    let totals = &stack.handle.totals().engines[0];
    assert_eq!((totals.draft_tokens, totals.accepted_tokens), (4, 3));
    assert!(!totals.anomalies.iter().any(|(anomaly, _)| *anomaly == "source_disagrees"), "{totals:?}");
}
