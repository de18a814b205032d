//! After a rebase `metrics` and the window count from zero, exported counters go on, and a copy in flight is void.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::{Exported, Stack, collections, of_engine, set_default};
use tracing_spec_decode::{HostCounters, builder, step_span};

fn step(accepted: u32) {
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = accepted));
}

#[test]
fn counted_by_fields() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    handle.rebase("0");
    step(0);
    handle.flush(Duration::ZERO).unwrap();
    handle.rebase("0");
    assert_eq!(handle.metrics("0").unwrap().draft_tokens, Some(0));
    assert!(handle.metrics("0").unwrap().draft_acceptance_rate().is_nan());
    step(3);
    handle.flush(Duration::ZERO).unwrap();
    assert_eq!(handle.metrics("0").unwrap().draft_acceptance_rate(), 0.75);
    let points = exported.collect();
    assert_eq!((points[&of_engine("draft_tokens")], points[&of_engine("draft_acceptance_rate")]), (8.0, 0.75));
    assert_eq!(handle.totals().engines[0].draft_tokens, 8);
}

#[test]
fn counted_on_the_host_by_position() {
    let (handle, _default) = set_default(builder());
    let mut counters = HostCounters::new();
    let _attached = handle.attach("0", counters.source()).unwrap();
    let mut step = |accepted| {
        step_span!(num_spec_tokens = 2, num_drafts = 1)
            .in_scope(|| assert!(counters.record_draft(2, accepted, accepted + 1)));
    };
    step(1);
    handle.rebase("0");
    step(2);
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.accepted_tokens, metrics.accepted_per_position), (Some(2), Some(vec![1, 1])));
}

#[test]
fn a_copy_in_flight_is_void_and_what_it_held_comes_with_the_next() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    let step = || step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(3, 4));
    step();
    stack.flush();
    stack.pass(6_000);
    step();
    stack.handle.rebase("0");
    step();
    assert_eq!(stack.metrics().draft_tokens, Some(0), "the copy of before the rebase shows nothing");
    step();
    stack.flush();
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(12), Some(9)), "counted since the last sample");
    let points = stack.collect();
    assert_eq!(points[&of_engine("draft_tokens")], 16.0);
    assert_eq!(collections(&points, "skipped", Some("half_step")), 1.0);
}
