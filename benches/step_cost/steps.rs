//! The steps: one span, created, entered, exited, closed. Each is a function of its own, which callgrind toggles on.

use std::hint::black_box;
use std::sync::LazyLock;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use tracing::field::Empty;
use tracing::{info, info_span};

use crate::stacks;

pub(crate) const NAMES: [&str; 7] = ["two", "whole", "full", "phased", "other", "event", "by_hand"];

pub(crate) fn named(name: &str) -> Option<fn(u64)> {
    match name {
        "two" => Some(step_two),
        "whole" => Some(step_whole),
        "full" => Some(step_full),
        "phased" => Some(step_phased),
        "other" => Some(step_other),
        "event" => Some(step_event),
        "by_hand" => Some(step_by_hand),
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

/// A step of two fields with one span for its drafting inside.
#[inline(never)]
fn step_phased(count: u64) {
    for index in 0..count {
        let span = info_span!("spec_decode_step", num_spec_tokens = 0_u64, num_tokens = black_box(index) & 7);
        span.in_scope(|| info_span!("spec_decode_draft").in_scope(|| black_box(index)));
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

/// What [`step_whole`] says, as the OpenTelemetry metrics layer wants to be told.
#[inline(never)]
fn step_event(count: u64) {
    for index in 0..count {
        info!(
            monotonic_counter.drafts = 2_u64,
            monotonic_counter.draft_tokens = 8_u64,
            monotonic_counter.accepted_tokens = black_box(index) & 7,
            engine = "e1",
        );
    }
}

/// What [`step_whole`] says, added to counters by hand on the engine's thread.
#[inline(never)]
fn step_by_hand(count: u64) {
    let (_, [drafts, draft_tokens, accepted_tokens]) = &*COUNTERS;
    let engine = [KeyValue::new("engine", "e1")];
    for index in 0..count {
        drafts.add(2, &engine);
        draft_tokens.add(8, &engine);
        accepted_tokens.add(black_box(index) & 7, &engine);
    }
}

static COUNTERS: LazyLock<(SdkMeterProvider, [Counter<u64>; 3])> = LazyLock::new(|| {
    let provider = stacks::meter_provider();
    let meter = provider.meter("by_hand");
    (provider, ["drafts", "draft_tokens", "accepted_tokens"].map(|name| meter.u64_counter(name).build()))
});
