//! A step's time, that of its drafting and verifying, and the batch's sequences and tokens, with drafts and without.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::{Stack, of_engine, of_steps};
use tracing::{info_span, trace_span};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;

/// A stack in which another layer sees spans that ours does not, so that they can lie between a step and its phases.
fn stack() -> Stack {
    let neighbour = tracing_subscriber::fmt::layer()
        .with_writer(std::io::sink)
        .with_filter(filter_fn(|metadata| metadata.name() == "forward"));
    Stack::over(tracing_subscriber::registry().with(neighbour), builder())
}

fn drafted() -> tracing::Span {
    step_span!(num_spec_tokens = 4, num_drafts = 2, num_accepted_tokens = 3, num_sequences = 3, num_tokens = 6)
}

fn plain() -> tracing::Span {
    step_span!(num_drafts = 0, num_sequences = 2, num_tokens = 2)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn of_steps_with_drafts_and_without() {
    let stack = stack();
    for _ in 0..3 {
        let step = drafted();
        stack.pass(100);
        step.in_scope(|| stack.pass(5));
        // A step that is entered again goes on: what lies between belongs to it.
        stack.pass(1);
        step.in_scope(|| stack.pass(2));
        stack.pass(100);
        drop(step);
        plain().in_scope(|| stack.pass(3));
    }
    drop(plain());
    let metrics = stack.metrics();
    assert_eq!((metrics.drafted_steps.steps, metrics.drafted_steps.time), (3, millis(24)));
    assert_eq!((metrics.drafted_steps.sequences, metrics.drafted_steps.tokens), (Some(9), Some(18)));
    assert_eq!((metrics.plain_steps.steps, metrics.plain_steps.time), (4, millis(9)));
    assert_eq!((metrics.plain_steps.sequences, metrics.plain_steps.tokens), (Some(8), Some(8)));

    let points = stack.collect();
    let point = |name: &str, drafted: bool| points[&of_steps(name, drafted)];
    assert_eq!((point("step.time", true), point("step.time", false)), (0.024, 0.009));
    assert_eq!((point("sequences", true), point("sequences", false)), (9.0, 8.0));
    assert_eq!((point("tokens", true), point("tokens", false)), (18.0, 8.0));
    assert!(!points.contains_key(&of_engine("draft.time")), "nobody has drafted in a span of its own");
    let totals = stack.handle.totals().engines.remove(0);
    assert_eq!((totals.drafted_steps, totals.plain_steps), (metrics.drafted_steps, metrics.plain_steps));
}

#[test]
fn of_the_phases_of_steps_with_drafts() {
    let stack = stack();
    for step in [drafted(), plain(), drafted()] {
        step.in_scope(|| {
            info_span!("spec_decode_draft").in_scope(|| stack.pass(2));
            stack.pass(10);
            let verify = trace_span!(target: "elsewhere", "spec_decode_verify", sequences = 2);
            verify.in_scope(|| stack.pass(3));
            stack.pass(1);
            verify.in_scope(|| stack.pass(1));
        });
    }
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_time, metrics.verify_time), (millis(4), millis(10)));
    assert_eq!(metrics.drafted_steps.time, millis(34));
    let points = stack.collect();
    assert_eq!((points[&of_engine("draft.time")], points[&of_engine("verify.time")]), (0.004, 0.01));
}

#[test]
fn a_phase_finds_its_step_by_its_parent_or_around_it() {
    let stack = stack();
    let step = drafted();
    // By name, from outside of it.
    info_span!(parent: &step, "spec_decode_draft").in_scope(|| stack.pass(1));
    step.in_scope(|| {
        // Behind a span that is not ours, which another layer sees.
        info_span!("forward").in_scope(|| info_span!("spec_decode_draft").in_scope(|| stack.pass(2)));
        // Another phase of the same kind is timed by itself, one without a step isn't.
        info_span!("spec_decode_draft").in_scope(|| stack.pass(4));
        info_span!(parent: None, "spec_decode_draft").in_scope(|| stack.pass(8));
        // Never entered; made inside of another phase, whose time it is part of.
        drop(info_span!("spec_decode_draft"));
        info_span!("spec_decode_verify").in_scope(|| info_span!("spec_decode_draft").in_scope(|| stack.pass(16)));
    });
    info_span!("spec_decode_draft").in_scope(|| stack.pass(32));
    drop(step);
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_time, metrics.verify_time), (millis(7), millis(16)));
}

#[test]
fn a_phase_that_outlives_the_step_is_counted_with_it() {
    let stack = stack();
    let step = drafted();
    let verify = step.in_scope(|| info_span!("spec_decode_verify"));
    drop(step);
    verify.in_scope(|| stack.pass(5));
    assert_eq!(stack.handle.status("0").steps, 0);
    drop(verify);
    assert_eq!((stack.handle.status("0").steps, stack.metrics().verify_time), (1, millis(5)));
}

#[test]
fn other_names_of_the_phases() {
    let stack = Stack::of(builder().with_draft_span_name("propose").with_verify_span_name("score"));
    drafted().in_scope(|| {
        for (name, passed) in [("propose", 1), ("score", 2), ("spec_decode_draft", 4)] {
            let span = match name {
                "propose" => info_span!("propose"),
                "score" => info_span!("score"),
                _ => info_span!("spec_decode_draft"),
            };
            span.in_scope(|| stack.pass(passed));
        }
    });
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_time, metrics.verify_time), (millis(1), millis(2)));
}

#[test]
fn with_a_source_time_is_that_of_the_last_sample_and_exported_at_each_close() {
    let stack = stack();
    let (_, _attached) = stack.attach();
    let step = || step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| stack.pass(5));
    step();
    stack.flush();
    step();
    assert_eq!(stack.metrics().drafted_steps.time, millis(5));
    assert_eq!(stack.collect()[&of_steps("step.time", true)], 0.01);
    stack.handle.rebase("0");
    step();
    stack.flush();
    assert_eq!((stack.metrics().drafted_steps.steps, stack.metrics().drafted_steps.time), (2, millis(10)));
}

#[test]
fn phases_over_the_bound_are_not_timed_and_harm_nothing() {
    let stack = Stack::of(builder().with_max_open_steps(2));
    drafted().in_scope(|| {
        let phases: Vec<_> = (0..5).map(|_| info_span!("spec_decode_draft")).collect();
        for phase in &phases {
            phase.in_scope(|| stack.pass(1));
        }
    });
    drafted().in_scope(|| info_span!("spec_decode_draft").in_scope(|| stack.pass(10)));
    assert_eq!(stack.metrics().draft_time, millis(12));
}

#[test]
fn a_phase_never_counts_for_another_step() {
    let stack = stack();
    // Made inside a step, but no child of it, and entered when another step has its place.
    let orphan =
        drafted().in_scope(|| info_span!(parent: None, "forward").in_scope(|| info_span!("spec_decode_draft")));
    let others: Vec<_> = (0..256).map(|_| step_span!(engine = "b", num_spec_tokens = 4, num_drafts = 1)).collect();
    orphan.in_scope(|| stack.pass(50));
    drop(orphan);
    drop(others);
    assert_eq!(stack.handle.totals().engines.iter().filter_map(|engine| engine.draft_time).max(), None);

    // Inside a step of ours that is not counted.
    let step = drafted();
    step.in_scope(|| {
        step_span!(rank = 1, num_drafts = 1).in_scope(|| info_span!("spec_decode_draft").in_scope(|| stack.pass(5)));
    });
    // Behind a sibling that came and went inside a phase.
    step.in_scope(|| {
        let verify = info_span!("spec_decode_verify");
        info_span!("spec_decode_draft").in_scope(|| {
            verify.in_scope(|| stack.pass(1));
            info_span!("spec_decode_verify").in_scope(|| stack.pass(10));
        });
    });
    // Inside a phase of another step.
    let other = step_span!(engine = "b", num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 1);
    step.in_scope(|| {
        info_span!(parent: &other, "spec_decode_verify")
            .in_scope(|| info_span!("spec_decode_draft").in_scope(|| stack.pass(7)));
    });
    drop(step);
    drop(other);
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_time, metrics.verify_time), (millis(11), millis(1)));
    let other = stack.handle.metrics("b").unwrap();
    assert_eq!((other.draft_time, other.verify_time), (millis(0), millis(7)));
}
