//! Drafts observed in public tests and bug reports give the same totals through real spans.
#![allow(missing_docs)]

use tracing_spec_decode::{HostCounters, SpecDecodeMetrics, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

/// One step per call, each draft as (drafted, accepted).
fn observe(k: u32, drafts: &[(u32, u32)]) -> SpecDecodeMetrics {
    let (layer, handle) = builder().build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let mut counters = HostCounters::new();
    let _attached = handle.attach("0", counters.source()).unwrap();
    let span = step_span!(num_spec_tokens = k, num_drafts = drafts.len());
    for &(drafted, accepted) in drafts {
        assert!(counters.record_draft(drafted, accepted, accepted + 1));
    }
    drop(span);
    assert!(handle.totals().engines[0].anomalies.iter().all(|(name, _)| *name == "source_disagrees"));
    handle.metrics("0").unwrap()
}

#[test]
fn drafts_of_varying_length() {
    let metrics = observe(3, &[(3, 3), (3, 1), (2, 0)]);
    assert_eq!((metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens), (Some(3), Some(8), Some(4)));
    assert_eq!(metrics.acceptance_rate_per_position(), [2.0 / 3.0, 1.0 / 3.0, 1.0 / 2.0]);
    assert_eq!(metrics.draft_acceptance_rate(), 0.5);
}

#[test]
fn a_partial_draft_shows_all_k_positions() {
    let metrics = observe(4, &[(4, 2)]);
    assert_eq!(metrics.accepted_per_position, Some(vec![1, 1, 0, 0]));
    assert_eq!(metrics.draft_per_position, Some(vec![1, 1, 1, 1]));
}

#[test]
fn the_mean_length() {
    assert_eq!(observe(3, &[(3, 3), (3, 0)]).mean_acceptance_length(), 2.5);
}

#[test]
fn more_accepted_than_k_is_refused() {
    assert!(!HostCounters::new().record_draft(2, 3, 4));
}

#[test]
fn golden_values_to_the_printed_digits() {
    // accepted, emitted, draft tokens, k, drafts, rate, efficiency: vllm 9539, 7301, 6768.
    for (accepted, emitted, draft_tokens, k, drafts, rate, efficiency) in [
        (8547, 10616, 13311, 3, 4437, "0.642", "0.598"),
        (32594, 34244, 53716, 4, 13429, "0.607", "0.510"),
        (0, 2642, 42272, 16, 2642, "0.000", "0.059"),
        (0, 3191, 51056, 16, 3191, "0.000", "0.059"),
        (1, 1, 5, 5, 1, "0.200", "0.167"),
        (1, 3, 15, 5, 3, "0.067", "0.167"),
        (2, 2, 4, 4, 1, "0.500", "0.400"),
    ] {
        let metrics = SpecDecodeMetrics {
            num_spec_tokens: Some(k),
            drafts: Some(drafts),
            draft_tokens: Some(draft_tokens),
            accepted_tokens: Some(accepted),
            emitted_tokens: Some(emitted),
            ..SpecDecodeMetrics::default()
        };
        assert_eq!(format!("{:.3}", metrics.draft_acceptance_rate()), rate);
        assert_eq!(format!("{:.3}", metrics.system_efficiency()), efficiency);
        assert_eq!(metrics.max_emitted_tokens(), Some(draft_tokens / k * (k + 1)));
    }
}

#[test]
fn engines_combine_by_sums() {
    let engine = |drafts, draft_tokens, accepted_tokens| SpecDecodeMetrics {
        drafts: Some(drafts),
        draft_tokens: Some(draft_tokens),
        accepted_tokens: Some(accepted_tokens),
        ..SpecDecodeMetrics::default()
    };
    let both = engine(22, 110, 17).merged(&engine(15, 75, 27));
    assert_eq!(format!("{:.3}", both.draft_acceptance_rate()), "0.238");
    assert!(SpecDecodeMetrics::default().draft_acceptance_rate().is_nan());
    assert!(SpecDecodeMetrics::default().mean_acceptance_length().is_nan());
}
