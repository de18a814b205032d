//! A global `EnvFilter` hides the steps, one on another layer does not, in either order; `status` tells which it is.
#![allow(missing_docs)]

use tracing::Dispatch;
use tracing_spec_decode::{Handle, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, registry};

const HIDDEN: &str =
    "no step has reached the layer: does a filter on the whole stack hide its spans?; no source, the fields count";

fn steps_seen(stack: impl Into<Dispatch>, handle: &Handle) -> String {
    tracing::dispatcher::with_default(&stack.into(), || {
        for _ in 0..3 {
            step_span!(num_drafts = 0).in_scope(|| {});
        }
    });
    handle.status("0").to_string()
}

fn quiet<S>() -> impl Layer<S>
where
    S: tracing::Subscriber + for<'span> registry::LookupSpan<'span>,
{
    fmt::layer().with_writer(std::io::sink).with_filter(EnvFilter::new("warn"))
}

#[test]
fn only_a_filter_on_the_whole_stack_hides_the_steps() {
    let (layer, handle) = builder().build().unwrap();
    assert_eq!(steps_seen(Registry::default().with(EnvFilter::new("warn")).with(layer), &handle), HIDDEN);

    let (layer, handle) = builder().build().unwrap();
    assert_eq!(steps_seen(Registry::default().with(layer).with(EnvFilter::new("warn")), &handle), HIDDEN);

    let (layer, handle) = builder().build().unwrap();
    let passing = EnvFilter::new("warn,[spec_decode_step]=info");
    let stack = Registry::default().with(passing).with(layer);
    assert!(steps_seen(stack, &handle).starts_with("3 steps closed, 0 open"));

    let (layer, handle) = builder().build().unwrap();
    assert!(steps_seen(Registry::default().with(quiet()).with(layer), &handle).starts_with("3 steps closed, 0 open"));

    let (layer, handle) = builder().build().unwrap();
    assert!(steps_seen(Registry::default().with(layer).with(quiet()), &handle).starts_with("3 steps closed, 0 open"));
}

#[test]
fn guards_that_are_kept_while_the_next_is_made_are_seen_as_open_steps() {
    let (layer, handle) = builder().build().unwrap();
    let mut kept = None;
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        for _ in 0..4 {
            let next = step_span!(num_drafts = 0).entered();
            kept.replace(next);
        }
    });
    let status = handle.status("0");
    assert_eq!((status.steps, status.open_steps), (0, 4));
    assert!(status.to_string().starts_with("no step has closed, 4 open: is each the child of the last?"), "{status}");
}
