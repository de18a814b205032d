//! Where the fields give what a source counts too, the two are compared, over steps that both have seen whole.
#![allow(missing_docs)]

mod support;

use support::{Stack, anomaly};
use tracing_spec_decode::{HostCounters, step_span};

fn disagreements(stack: &Stack) -> f64 {
    stack.collect().get(&anomaly("source_disagrees")).copied().unwrap_or_default()
}

fn step(accepted: u32) -> tracing::Span {
    let emitted = accepted + 1;
    step_span!(
        parent: None,
        num_spec_tokens = 4,
        num_drafts = 1,
        num_accepted_tokens = accepted,
        num_emitted_tokens = emitted
    )
}

#[test]
fn of_a_device() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    step(3).in_scope(|| device.add(3, 4));
    stack.flush();
    assert_eq!(disagreements(&stack), 0.0);
    step(3).in_scope(|| device.add(2, 4));
    step(1).in_scope(|| device.add(2, 2));
    stack.flush();
    assert_eq!(disagreements(&stack), 0.0, "the steps of one sample are compared together");
    step(3).in_scope(|| device.add(2, 4));
    stack.flush();
    assert_eq!(disagreements(&stack), 1.0);
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(2, 4));
    step(3).in_scope(|| device.add(3, 4));
    stack.flush();
    assert_eq!(disagreements(&stack), 1.0, "one step gave no field, so there is nothing to compare");
    assert_eq!(stack.metrics().accepted_tokens, Some(14), "the source counts");
}

#[test]
fn on_the_host_only_while_no_other_step_is_under_way() {
    let stack = Stack::new();
    let mut counters = HostCounters::new();
    let _attached = stack.handle.attach("0", counters.source()).unwrap();
    for _ in 0..5 {
        let (first, second) = (step(3), step(1));
        let (in_first, in_second) = (first.enter(), second.enter());
        assert!(counters.record_draft(4, 3, 4));
        assert!(counters.record_draft(4, 1, 2));
        stack.pass(6_000);
        drop(in_first);
        drop(first);
        drop(in_second);
        drop(second);
    }
    assert_eq!(disagreements(&stack), 0.0, "the source is ahead of the first step's close by the second's draft");
    step(3).in_scope(|| assert!(counters.record_draft(4, 2, 3)));
    stack.flush();
    assert_eq!(disagreements(&stack), 1.0);
}

#[test]
fn but_fields_that_contradict_each_other_are_compared_with_nothing() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    let drafts = |tokens, accepted, emitted| {
        step_span!(
            parent: None,
            num_spec_tokens = 4,
            num_drafts = 1,
            num_draft_tokens = tokens,
            num_accepted_tokens = accepted,
            num_emitted_tokens = emitted
        )
    };
    let contradictory = [
        (drafts(5, 3, 4), "drafts_inconsistent", 1.0),
        (drafts(4, 5, 5), "accepted_exceeds_draft", 1.0),
        (drafts(4, 3, 6), "emitted_exceeds_possible", 1.0),
        (drafts(5, 6, 6), "accepted_exceeds_draft", 2.0),
        (drafts(4, 6, 6), "emitted_exceeds_possible", 2.0),
    ];
    for (step, kind, times) in contradictory {
        step.in_scope(|| device.add(3, 4));
        drop(step);
        stack.flush();
        assert_eq!(stack.collect()[&anomaly(kind)], times, "{kind}, by the fields themselves");
        assert_eq!(disagreements(&stack), 0.0, "{kind}");
    }
    assert_eq!(stack.metrics().accepted_tokens, Some(15), "the source counts");
}
