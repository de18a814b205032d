//! Public bug reports of other engines' speculative-decoding metrics, each played with its own numbers.
//!
//! Those that need a device stream, a dashboard or a real backend are in the `cuda_*` tests and under `observe/`.
#![allow(missing_docs)]

mod support;

use support::{Stack, anomaly, collections, of_engine, of_steps};
use tracing_spec_decode::{EngineAttributes, HostCounters, SpecDecodeMetrics, step_span};

/// A step without a source: k, drafts, draft tokens, accepted.
fn step(k: u64, drafts: u64, tokens: u64, accepted: u64) {
    drop(step_span!(
        num_spec_tokens = k,
        num_drafts = drafts,
        num_draft_tokens = tokens,
        num_accepted_tokens = accepted,
        num_emitted_tokens = accepted + drafts
    ));
}

/// Drafts, draft tokens and accepted tokens.
fn counts(stack: &Stack) -> [u64; 3] {
    let metrics = stack.metrics();
    [metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens].map(Option::unwrap_or_default)
}

/// vllm#6577: the time of the last collection was never set, so that every other step copied.
/// vllm#6643: collecting and logging ran on two unrelated clocks, and metrics almost never appeared.
#[test]
fn a_minute_of_steps_makes_eleven_copies_and_an_export_at_any_time_has_the_last() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    let mut exports = Vec::new();
    for step in 1..=6_000 {
        stack.pass(10);
        step_span!(num_spec_tokens = 5, num_drafts = 1).in_scope(|| device.add(3, 4));
        if step % 700 == 0 {
            let points = stack.collect();
            let sample = stack.metrics();
            assert_eq!(points[&of_engine("draft_tokens")], sample.draft_tokens.unwrap_or(0) as f64);
            exports.push(collections(&points, "resolved", None));
        }
    }
    assert_eq!(device.starts() - 1, 11, "copies, the zero apart: one each 5.01 s");
    assert_eq!(exports, [1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 11.0], "each sample is exported once, none is lost");
}

/// vllm#7586, vllm#7301: no totals, or wrong ones, after a short run.
#[test]
fn a_run_shorter_than_the_interval_has_its_totals_after_a_flush() {
    let stack = Stack::new();
    let (device, attached) = stack.attach();
    for _ in 0..50 {
        stack.pass(10);
        step_span!(num_spec_tokens = 5, num_drafts = 4).in_scope(|| device.add(12, 16));
    }
    stack.flush();
    drop(attached);
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_tokens, metrics.drafts), (Some(1_000), Some(200)));
    assert_eq!((metrics.draft_acceptance_rate(), metrics.system_efficiency()), (0.6, 800.0 / 1_200.0));

    let stack = Stack::new();
    stack.pass(100);
    step(5, 1, 5, 1);
    stack.pass(100);
    stack.flush();
    assert_eq!(stack.collect()[&of_engine("draft_tokens")], 5.0);
}

/// sglang#31364, sglang#27979: read before it had landed, or waited for.
#[test]
fn a_copy_that_lands_twenty_steps_later_is_one_copy_and_one_publication() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    device.land_after(20);
    stack.pass(5_000);
    for step in 0..=21 {
        stack.pass(10);
        assert_eq!(counts(&stack), [0; 3], "nothing is known before step {step}");
        step_span!(num_spec_tokens = 5, num_drafts = 1).in_scope(|| device.add(3, 4));
    }
    assert_eq!(counts(&stack), [1, 5, 3], "the one step that the copy belongs to");
    assert_eq!((device.starts() - 1, collections(&stack.collect(), "resolved", None)), (1, 1.0));
}

/// sfllm#33: numerator and denominator were of different instants.
#[test]
fn drafts_counted_after_the_copy_wait_for_the_next() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    device.land_after(1);
    stack.pass(5_000);
    step_span!(num_spec_tokens = 5, num_drafts = 20).in_scope(|| device.add(40, 60));
    step_span!(num_spec_tokens = 5, num_drafts = 10).in_scope(|| device.add(30, 40));
    step_span!(num_spec_tokens = 5, num_drafts = 10).in_scope(|| device.add(30, 40));
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_tokens, metrics.draft_acceptance_rate()), (Some(100), 0.4));
}

/// vllm#52756 and its kin, llama.cpp#14048, llama.cpp#25682, llama.cpp#26320: padding, drafts that were never verified
/// and replays counted as drafts.
#[test]
fn a_step_that_verified_no_drafts_is_a_step_and_nothing_else() {
    let stack = Stack::new();
    step(5, 4, 20, 10);
    step(0, 4, 0, 0);
    step(5, 4, 0, 0);
    drop(step_span!(num_spec_tokens = 2, num_drafts = 0, num_discarded_draft_tokens = 2));
    drop(step_span!(num_drafts = 0, num_accepted_tokens = 4, num_emitted_tokens = 4));
    assert_eq!(counts(&stack), [4, 20, 10]);
    let points = stack.collect();
    assert_eq!(points[&of_steps("steps", false)], 4.0);
    assert_eq!(points[&of_engine("discarded_draft_tokens")], 2.0);
    assert_eq!(stack.metrics().draft_acceptance_rate(), 0.5);
}

/// vllm#15151: the total had to divide by k. sglang#13212, TRT-LLM#14724, sglang#34814: configured widths in place of
/// what was drafted.
#[test]
fn k_may_change_and_drafts_may_be_ragged() {
    let stack = Stack::new();
    for (k, drafts) in [(5, 2), (5, 3), (3, 4), (0, 4), (7, 1)] {
        step(k, drafts, k * drafts, 0);
    }
    assert_eq!(counts(&stack), [10, 44, 0]);
    assert_eq!(stack.metrics().max_emitted_tokens(), Some(54));

    let stack = Stack::new();
    step(5, 22, 107, 50);
    assert_eq!(stack.metrics().max_emitted_tokens(), Some(129));
    step(7, 10, 70, 0);
    [4, 4, 1].into_iter().for_each(|tokens| step(4, 1, tokens, 1));
    step(5, 3, 8, 8);
    assert_eq!(counts(&stack), [38, 107 + 70 + 9 + 8, 50 + 3 + 8]);
    assert_eq!(stack.collect().keys().filter(|name| name.contains("anomalies")).count(), 0);
}

/// vllm#39359: the mean rate depends on k.
#[test]
fn the_conditional_rate_by_position_does_not_depend_on_k() {
    for k in [1, 5] {
        let stack = Stack::new();
        let mut counters = HostCounters::new();
        let _attached = stack.handle.attach("0", counters.source()).unwrap();
        // Of 3,125 drafts four fifths pass each position.
        let passing = [3_125, 2_500, 2_000, 1_600, 1_280, 1_024];
        step_span!(num_spec_tokens = k, num_drafts = 3_125).in_scope(|| {
            for draft in 0..3_125 {
                let accepted = passing[1..].iter().take(k as usize).filter(|passing| draft < **passing).count() as u32;
                assert!(counters.record_draft(k, accepted, accepted + 1));
            }
        });
        let metrics = stack.metrics();
        let mean = metrics.draft_acceptance_rate();
        assert!((mean - if k == 1 { 0.8 } else { 0.537_856 }).abs() < 1e-6, "{mean} at k = {k}");
        let rates = metrics.conditional_acceptance_rate_per_position();
        assert_eq!(rates, vec![0.8; k as usize]);
    }
}

/// sglang#11572, sglang#11823, vllm-ascend#15750: the target's own token counted as accepted, rates above 1.
#[test]
fn more_accepted_than_drafted_is_an_anomaly_and_no_rate() {
    let stack = Stack::new();
    for accepted in [3, 1, 5] {
        drop(step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = accepted));
    }
    drop(step_span!(num_draft_tokens = 1, num_drafts = 1, num_accepted_tokens = 2));
    let points = stack.collect();
    assert_eq!(points[&anomaly("accepted_exceeds_draft")], 2.0);
    assert_eq!(counts(&stack), [2, 8, 4]);

    let mut counters = HostCounters::new();
    let _attached = stack.handle.attach("0", counters.source()).unwrap();
    step_span!(num_spec_tokens = 4, num_drafts = 3).in_scope(|| {
        assert!(counters.record_draft(4, 4, 5));
        assert!(!counters.record_draft(4, 5, 5));
        assert!(!counters.record_draft(4, 4, 6));
        assert!(!counters.record_draft(4, -1, 1));
        assert!(!counters.record_draft(usize::MAX, 0, 1));
        assert!(!counters.record_draft(u32::MAX, -1, 1));
        assert!(!counters.record_draft(u32::MAX, 0, u64::MAX));
        assert!(counters.record_draft(0, 0, 1), "none was drafted");
    });
    let points = stack.collect();
    assert_eq!(points[&anomaly("accepted_exceeds_draft")], 7.0);
    assert_eq!(points[&anomaly("emitted_exceeds_possible")], 1.0);
    assert_eq!(counts(&stack), [1, 4, 4]);
}

/// sglang#23530: zero accepted looked positive. vllm#9565: accepted behind a rejection.
#[test]
fn the_targets_own_token_is_on_neither_side_of_the_rate() {
    let stack = Stack::new();
    step(4, 1, 4, 0);
    assert_eq!(stack.metrics().draft_acceptance_rate(), 0.0);
    step(4, 1, 4, 4);
    assert_eq!(stack.metrics().draft_acceptance_rate(), 0.5);
}

/// vllm#26372 and its kin: an empty output gave accepted = -1, and the engine died of it.
#[test]
fn a_counter_that_falls_is_a_restart_and_a_negative_field_is_absent() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    let mut total = 0;
    for (reading, gained) in [(100, 100), (40, 40), (60, 20)] {
        device.set(reading, reading);
        step_span!(num_spec_tokens = 100, num_drafts = 2, num_accepted_tokens = -1).in_scope(|| {});
        stack.flush();
        total += gained;
        assert_eq!(stack.metrics().accepted_tokens, Some(total));
    }
    let points = stack.collect();
    assert_eq!((points[&anomaly("counter_restarted")], points[&anomaly("invalid_value")]), (1.0, 3.0));
}

/// vllm#10914: tokens accepted by speculation missing from what was generated.
#[test]
fn every_emitted_token_is_counted() {
    let stack = Stack::new();
    for emitted in [3, 1, 6] {
        step(5, 1, 5, emitted - 1);
    }
    assert_eq!(stack.collect()[&of_engine("emitted_tokens")], 10.0);
}

/// vllm#30319: drafts never reached the scheduler, and nothing told.
#[test]
fn steps_without_drafts_are_seen_as_steps() {
    let stack = Stack::new();
    step(5, 1, 5, 2);
    for _ in 0..1_500 {
        stack.pass(10);
        step(5, 0, 0, 0);
    }
    let points = stack.collect();
    assert_eq!(points[&of_steps("steps", false)], 1_500.0);
    assert_eq!(points[&of_engine("drafts")], 1.0);
}

/// sglang#13754: only one kind of proposer was counted. vllm#23776: more engines than one.
#[test]
fn engines_and_proposers_are_series_of_one_metric() {
    let stack = Stack::new();
    for (name, method) in [("a", "ngram"), ("b", "eagle"), ("c", "medusa")] {
        let attributes = EngineAttributes::new().with_method(method).with_model("target");
        stack.handle.describe(name, attributes).unwrap();
    }
    for (name, drafts, tokens, accepted) in [("a", 22, 110, 17), ("b", 15, 75, 27), ("c", 15, 75, 27)] {
        for rank in [0, 1] {
            drop(step_span!(
                engine = name,
                rank,
                num_drafts = drafts,
                num_draft_tokens = tokens,
                num_accepted_tokens = accepted
            ));
        }
    }
    let points = stack.collect();
    let point = |metric: &str, name: &str, method: &str| {
        let attributes = format!("spec_decode.engine={name},spec_decode.method={method},spec_decode.model=target");
        points[&format!("spec_decode.{metric}{{{attributes}}}")]
    };
    assert_eq!((point("draft_tokens", "a", "ngram"), point("accepted_tokens", "a", "ngram")), (110.0, 17.0));
    assert_eq!((point("draft_tokens", "b", "eagle"), point("accepted_tokens", "b", "eagle")), (75.0, 27.0));
    assert_eq!((point("draft_tokens", "c", "medusa"), point("accepted_tokens", "c", "medusa")), (75.0, 27.0));
    let [a, b] = ["a", "b"].map(|name| stack.handle.metrics(name).unwrap());
    assert_eq!(format!("{:.3}", a.merged(&b).draft_acceptance_rate()), "0.238");
}

/// vllm#18053: rates of several processes were added. vllm#4582: gauges for totals. vllm#42690: weights.
#[test]
fn rates_of_several_are_quotients_of_sums_and_windows_are_differences() {
    let of = |draft_tokens, accepted_tokens| SpecDecodeMetrics {
        draft_tokens: Some(draft_tokens),
        accepted_tokens: Some(accepted_tokens),
        ..SpecDecodeMetrics::default()
    };
    assert_eq!(of(100, 60).merged(&of(100, 70)).draft_acceptance_rate(), 0.65);
    assert_eq!(of(300, 160).since(&of(200, 100)).draft_acceptance_rate(), 0.6);
    assert_eq!(format!("{:.3}", of(1_000, 900).merged(&of(10, 1)).draft_acceptance_rate()), "0.892");
}
