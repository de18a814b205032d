//! The traps and the ways out of them that `docs/adopting.md` tells of.
#![allow(missing_docs)]

use std::time::Duration;

use tracing::span::EnteredSpan;
use tracing::{Span, info_span};
use tracing_spec_decode::{EngineTotals, Handle, HostCounters, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

fn layer() -> (Handle, tracing::subscriber::DefaultGuard) {
    let (layer, handle) = builder().build().unwrap();
    (handle, tracing::subscriber::set_default(tracing_subscriber::registry().with(layer)))
}

fn totals(handle: &Handle) -> EngineTotals {
    handle.totals().engines.swap_remove(0)
}

/// An engine that keeps its guard in a field; `next` makes the new one of the old.
fn closed_and_open(next: impl Fn(&mut Option<EnteredSpan>)) -> (u64, usize) {
    let (handle, _default) = layer();
    let mut guard = None;
    (0..5).for_each(|_| next(&mut guard));
    let status = handle.status("0");
    (status.steps, status.open_steps)
}

#[test]
fn a_guard_that_is_kept_while_the_next_is_made_closes_no_step() {
    assert_eq!(closed_and_open(|guard| *guard = Some(step_span!(num_drafts = 0).entered())), (0, 5));
}

#[test]
fn dropping_it_first_or_having_no_parent_closes_each() {
    let dropping_first = |guard: &mut Option<EnteredSpan>| {
        *guard = None;
        *guard = Some(step_span!(num_drafts = 0).entered());
    };
    assert_eq!(closed_and_open(dropping_first), (4, 1));
    assert_eq!(closed_and_open(|guard| *guard = Some(step_span!(parent: None, num_drafts = 0).entered())), (4, 1));
}

#[test]
fn a_span_that_is_kept_keeps_its_step_open() {
    let (handle, _default) = layer();
    let kept = step_span!(num_drafts = 0);
    kept.clone().in_scope(|| {});
    assert_eq!((handle.status("0").steps, handle.status("0").open_steps), (0, 1));
    drop(kept);
    assert_eq!((handle.status("0").steps, handle.status("0").open_steps), (1, 0));
}

#[test]
fn the_current_span_is_the_step_only_where_no_other_is_around() {
    let (handle, _default) = layer();
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {
        info_span!("spec_decode_verify").in_scope(|| {
            Span::current().record("num_accepted_tokens", 3);
        });
    });
    assert_eq!(totals(&handle).anomalies, [("incomplete", 1)], "the record was lost");
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {
        let step = Span::current();
        info_span!("spec_decode_verify").in_scope(|| {
            step.record("num_accepted_tokens", 3);
        });
    });
    assert_eq!(totals(&handle).accepted_tokens, 3);
}

#[test]
fn a_k_without_drafts_is_an_incomplete_step_unless_it_says_that_it_has_none() {
    let (handle, _default) = layer();
    drop(step_span!(num_spec_tokens = 4));
    assert_eq!(totals(&handle).anomalies, [("incomplete", 1), ("drafts_unknown", 1)]);
    drop(step_span!(num_spec_tokens = 4, num_drafts = 0));
    drop(step_span!(num_spec_tokens = 0));
    drop(step_span!());
    assert_eq!(totals(&handle).plain_steps.steps, 3);
}

#[test]
fn a_flush_inside_a_step_waits_for_it_in_vain() {
    let (handle, _default) = layer();
    let step = step_span!(num_drafts = 0).entered();
    let error = handle.flush(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.to_string(), "not flushed: engine \"0\" (Busy)");
    drop(step);
    handle.flush(Duration::from_millis(1)).unwrap();
}

#[test]
fn a_tree_counts_its_nodes_in_the_fields_or_its_depth_in_counters_but_not_both() {
    // Fifteen nodes, four deep, three of them kept: the fields say all.
    let (handle, _default) = layer();
    drop(step_span!(num_drafts = 1, num_draft_tokens = 15, num_accepted_tokens = 3, num_emitted_tokens = 4));
    assert_eq!((totals(&handle).draft_tokens, totals(&handle).anomalies.len()), (15, 0));
    drop(step_span!(num_spec_tokens = 4, num_drafts = 1, num_draft_tokens = 15, num_accepted_tokens = 3));
    assert_eq!(totals(&handle).anomalies[0], ("drafts_inconsistent", 1), "k is the nodes of a sequence, not the depth");

    let (handle, _default) = layer();
    let mut counters = HostCounters::new();
    let attached = handle.attach("0", counters.source()).unwrap();
    counters.record_draft(4, 3, 4);
    drop(step_span!(num_drafts = 1));
    assert_eq!(totals(&handle).accepted_per_position, Some(vec![1, 1, 1, 0]));
    handle.flush(Duration::from_secs(5)).unwrap();
    assert_eq!(totals(&handle).anomalies, []);
    counters.record_draft(4, 3, 4);
    drop(step_span!(num_drafts = 1, num_draft_tokens = 15, num_accepted_tokens = 3, num_emitted_tokens = 4));
    handle.flush(Duration::from_secs(5)).unwrap();
    assert_eq!(totals(&handle).anomalies, [("source_disagrees", 1)]);
    drop(attached);
}
