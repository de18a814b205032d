//! One step at a time, at the edges of what its fields may say: exactly these anomalies, and whether it counts.
#![allow(missing_docs)]

use tracing::info_span;
use tracing_spec_decode::builder;
use tracing_subscriber::layer::SubscriberExt;

const NONE: Option<u64> = None;

/// k, drafts, draft tokens, accepted, emitted.
type Fields = [Option<u64>; 5];

/// A step by itself: its anomalies, and the drafts, draft tokens, accepted and emitted tokens that it counts.
fn step(fields: Fields) -> (Vec<&'static str>, [u64; 4]) {
    let (layer, handle) = builder().build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let [k, drafts, tokens, accepted, emitted] = fields;
    drop(info_span!(
        "spec_decode_step",
        num_spec_tokens = k,
        num_drafts = drafts,
        num_draft_tokens = tokens,
        num_accepted_tokens = accepted,
        num_emitted_tokens = emitted,
    ));
    let totals = &handle.totals().engines[0];
    let anomalies = totals.anomalies.iter().map(|(name, _)| *name).collect();
    let emitted = totals.emitted_tokens.unwrap_or(0);
    (anomalies, [totals.drafts, totals.draft_tokens, totals.accepted_tokens, emitted])
}

#[test]
fn a_step_that_agrees_with_itself_counts_whole() {
    for (fields, counts) in [
        ([Some(4), Some(2), Some(8), Some(8), Some(10)], [2, 8, 8, 10]),
        ([Some(4), Some(2), Some(2), Some(0), Some(2)], [2, 2, 0, 2]),
        ([NONE, Some(2), Some(9), Some(9), Some(11)], [2, 9, 9, 11]),
        ([Some(4), Some(2), NONE, Some(8), NONE], [2, 8, 8, 0]),
        ([Some(4), NONE, Some(8), Some(1), NONE], [2, 8, 1, 0]),
    ] {
        assert_eq!(step(fields), (Vec::new(), counts), "{fields:?}");
    }
}

#[test]
fn a_step_that_does_not_say_enough_counts_nothing() {
    for (fields, anomalies) in [
        ([Some(4), Some(2), NONE, NONE, NONE], ["incomplete"].as_slice()),
        ([NONE, Some(2), NONE, Some(1), NONE], &["drafts_unknown"]),
        ([NONE, NONE, Some(3), Some(1), NONE], &["drafts_unknown"]),
        ([Some(4), NONE, Some(7), Some(1), NONE], &["drafts_unknown"]),
        ([Some(4), NONE, NONE, Some(1), NONE], &["drafts_unknown"]),
        ([Some(4), NONE, NONE, NONE, NONE], &["incomplete", "drafts_unknown"]),
    ] {
        assert_eq!(step(fields), (anomalies.to_vec(), [0; 4]), "{fields:?}");
    }
}

#[test]
fn a_step_that_contradicts_itself_counts_nothing() {
    for (fields, anomalies) in [
        ([Some(4), Some(2), Some(9), Some(1), NONE], ["drafts_inconsistent"].as_slice()),
        ([Some(4), Some(2), Some(1), Some(1), NONE], &["drafts_inconsistent"]),
        ([NONE, Some(2), Some(1), Some(1), NONE], &["drafts_inconsistent"]),
        ([Some(4), Some(2), Some(8), Some(9), NONE], &["accepted_exceeds_draft"]),
        ([NONE, NONE, Some(8), Some(9), NONE], &["drafts_unknown", "accepted_exceeds_draft"]),
        ([Some(4), Some(2), Some(8), Some(8), Some(11)], &["emitted_exceeds_possible"]),
        ([Some(4), Some(2), Some(8), Some(9), Some(11)], &["accepted_exceeds_draft", "emitted_exceeds_possible"]),
    ] {
        assert_eq!(step(fields), (anomalies.to_vec(), [0; 4]), "{fields:?}");
    }
}

#[test]
fn a_zero_in_any_of_the_three_is_a_step_without_drafts() {
    for fields in [
        [Some(0), Some(2), Some(8), NONE, NONE],
        [Some(4), Some(0), NONE, NONE, NONE],
        [NONE, NONE, Some(0), Some(3), NONE],
        [NONE; 5],
    ] {
        assert_eq!(step(fields), (Vec::new(), [0; 4]), "{fields:?}");
    }
}
