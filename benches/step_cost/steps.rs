//! The steps: one span, created, entered, exited, closed. Each is a function of its own, which callgrind toggles on.

use std::hint::black_box;

use tracing::field::Empty;
use tracing::info_span;

pub(crate) const NAMES: [&str; 4] = ["two", "whole", "full", "other"];

pub(crate) fn named(name: &str) -> Option<fn(u64)> {
    match name {
        "two" => Some(step_two),
        "whole" => Some(step_whole),
        "full" => Some(step_full),
        "other" => Some(step_other),
        _ => None,
    }
}

/// Two fields, given at creation: a step without drafts.
#[inline(never)]
fn step_two(count: u64) {
    for index in 0..count {
        let span = info_span!("spec_decode_step", num_spec_tokens = 0_u64, num_tokens = black_box(index) & 7);
        drop(span.enter());
    }
}

/// The three fields that make a step with drafts whole, given at creation.
#[inline(never)]
fn step_whole(count: u64) {
    for index in 0..count {
        let accepted = black_box(index) & 7;
        let span = info_span!(
            "spec_decode_step",
            num_drafts = 2_u64,
            num_draft_tokens = 8_u64,
            num_accepted_tokens = accepted
        );
        drop(span.enter());
    }
}

/// Six fields: three given at creation, the engine's name among them, two recorded late, one never.
#[inline(never)]
fn step_full(count: u64) {
    for index in 0..count {
        let span = info_span!(
            "spec_decode_step",
            num_spec_tokens = 4_u64,
            num_drafts = 8_u64,
            engine = "e1",
            num_draft_tokens = Empty,
            num_accepted_tokens = Empty,
            num_emitted_tokens = Empty,
        );
        let entered = span.enter();
        span.record("num_accepted_tokens", black_box(index) & 15);
        span.record("num_emitted_tokens", (index & 15) + 8);
        drop(entered);
    }
}

/// A span that is not ours.
#[inline(never)]
fn step_other(count: u64) {
    for index in 0..count {
        let span = info_span!("request", id = black_box(index), tokens = 5_u64);
        drop(span.enter());
    }
}
