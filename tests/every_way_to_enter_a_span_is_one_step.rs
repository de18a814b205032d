//! A step is a span from its first enter to its close, in whatever order and on whatever thread that comes about.
#![allow(missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::Dispatch;
use tracing_spec_decode::{Handle, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

fn stack() -> (Dispatch, Handle) {
    let (layer, handle) = builder().build().unwrap();
    (Dispatch::new(tracing_subscriber::registry().with(layer)), handle)
}

/// Runs it with a layer of its own, and checks that it made so many steps, each of one draft of 4 with 3 accepted.
fn makes_steps(steps: u64, test: impl FnOnce()) {
    let (stack, handle) = stack();
    tracing::dispatcher::with_default(&stack, test);
    assert_eq!((handle.status("0").steps, handle.status("0").open_steps), (steps, 0));
    assert_eq!(handle.metrics("0").unwrap().accepted_tokens, Some(3 * steps));
}

fn step() -> tracing::Span {
    step_span!(parent: None, num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 3)
}

#[test]
fn entered_many_times() {
    makes_steps(1, || {
        let step = step();
        for _ in 0..50 {
            step.in_scope(|| {});
        }
    });
}

#[test]
fn entered_inside_itself() {
    makes_steps(1, || {
        let step = step();
        step.in_scope(|| step.in_scope(|| step.in_scope(|| {})));
    });
}

#[test]
fn exited_out_of_order() {
    makes_steps(3, || {
        let spans = [step(), step(), step()];
        let mut inside: Vec<_> = spans.iter().map(tracing::Span::enter).collect();
        drop(inside.remove(0));
        drop(inside.remove(1));
    });
}

#[test]
fn never_entered() {
    makes_steps(1, || drop(step()));
}

#[test]
fn cloned_and_kept_after_the_guard() {
    makes_steps(1, || {
        let step = step();
        let kept = step.clone();
        step.entered().exit();
        kept.in_scope(|| {});
    });
}

#[test]
fn dropped_while_panicking() {
    makes_steps(2, || {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _inside = step().entered();
            std::panic::resume_unwind(Box::new("the engine's own"));
        }));
        assert!(panicked.is_err());
        step().in_scope(|| {});
    });
}

#[test]
fn parent_dropped_before_its_child() {
    makes_steps(2, || {
        let parent = step();
        let child = step_span!(parent: &parent, num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 3);
        drop(parent);
        child.in_scope(|| {});
    });
}

#[test]
fn entered_on_several_threads_at_once_and_closed_on_another() {
    let (stack, handle) = stack();
    let span = tracing::dispatcher::with_default(&stack, step);
    let (inside, outside) = (std::sync::Barrier::new(4), std::sync::Barrier::new(4));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let _inside = span.enter();
                inside.wait();
                outside.wait();
            });
        }
    });
    assert_eq!(handle.status("0").open_steps, 1);
    std::thread::spawn(move || drop(span)).join().unwrap();
    assert_eq!(handle.status("0").steps, 1);
    assert_eq!(handle.metrics("0").unwrap().accepted_tokens, Some(3));
}

#[test]
fn open_steps_belong_to_their_dispatch_and_a_later_layer_does_not_see_them() {
    let (first, first_handle) = stack();
    let (second, second_handle) = stack();
    let span = tracing::dispatcher::with_default(&first, step);
    tracing::dispatcher::with_default(&second, || {
        span.in_scope(|| step().in_scope(|| {}));
        drop(span);
    });
    assert_eq!((first_handle.status("0").steps, second_handle.status("0").steps), (1, 1));
}
