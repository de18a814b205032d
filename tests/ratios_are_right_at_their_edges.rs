//! The arithmetic where it is easily wrong: all accepted, more accepted than drafted, a denominator of zero, by position,
//! and the line that it is printed as.
#![allow(missing_docs)]

use tracing_spec_decode::SpecDecodeMetrics;

fn metrics(drafts: u64, draft_tokens: u64, accepted: u64, emitted: u64) -> SpecDecodeMetrics {
    SpecDecodeMetrics {
        num_spec_tokens: Some(4),
        drafts: Some(drafts),
        draft_tokens: Some(draft_tokens),
        accepted_tokens: Some(accepted),
        emitted_tokens: Some(emitted),
        ..SpecDecodeMetrics::default()
    }
}

#[test]
fn all_accepted_is_1_and_more_is_unknown() {
    let all = metrics(2, 8, 8, 10);
    assert_eq!((all.draft_acceptance_rate(), all.system_efficiency(), all.mean_acceptance_length()), (1.0, 1.0, 5.0));
    let less = metrics(2, 8, 6, 8);
    assert_eq!(
        (less.draft_acceptance_rate(), less.system_efficiency(), less.mean_acceptance_length()),
        (0.75, 0.8, 4.0)
    );
    let more = metrics(2, 8, 9, 11);
    assert!(more.draft_acceptance_rate().is_nan());
    assert!(more.system_efficiency().is_nan());
    assert!(more.mean_acceptance_length().is_nan());
}

#[test]
fn without_drafts_every_ratio_is_unknown() {
    let none = metrics(0, 0, 0, 0);
    assert!(none.draft_acceptance_rate().is_nan());
    assert!(none.system_efficiency().is_nan());
    assert!(none.mean_acceptance_length().is_nan());
}

#[test]
fn each_position_has_its_own_rates() {
    let metrics = SpecDecodeMetrics {
        drafts: Some(16),
        accepted_per_position: Some(vec![12, 6, 0]),
        draft_per_position: Some(vec![16, 12, 0]),
        ..SpecDecodeMetrics::default()
    };
    let rates = metrics.acceptance_rate_per_position();
    assert_eq!(rates[..2], [0.75, 0.5]);
    assert!(rates[2].is_nan(), "nothing was drafted there");
    assert_eq!(metrics.conditional_acceptance_rate_per_position(), [0.75, 0.5, 0.0]);
    let by_positions = SpecDecodeMetrics { drafts: None, ..metrics };
    assert_eq!(by_positions.conditional_acceptance_rate_per_position()[0], 0.75, "the drafts are those of position 0");
}

#[test]
fn it_is_one_line() {
    assert_eq!(
        metrics(2, 8, 6, 8).to_string(),
        "draft acceptance rate 0.750, system efficiency 0.800, mean acceptance length 4.00, num_spec_tokens 4, drafts 2, \
         draft tokens 8, accepted tokens 6, emitted tokens 8"
    );
    assert_eq!(
        SpecDecodeMetrics::default().to_string(),
        "draft acceptance rate unknown, system efficiency unknown, mean acceptance length unknown, num_spec_tokens \
         unknown, drafts unknown, draft tokens unknown, accepted tokens unknown, emitted tokens unknown"
    );
}
