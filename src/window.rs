//! Which gauges a window has, and how long they may be shown.

#[cfg(feature = "otel")]
use std::time::Duration;

use crate::quantity::{Amounts, Quantities, Quantity};

/// The bits of a window's gauges.
pub(crate) mod gauge {
    pub(crate) const ACCEPTANCE_RATE: u64 = 1;
    pub(crate) const EFFICIENCY: u64 = 1 << 1;
    pub(crate) const ACCEPTANCE_LENGTH: u64 = 1 << 2;
    pub(crate) const NUM_SPEC_TOKENS: u64 = 1 << 3;
}

/// The gauges of a window with these sums, of which the `doubtful` can't be known.
pub(crate) fn gauges(sums: &Amounts, doubtful: Quantities, num_spec_tokens: u64) -> u64 {
    let [drafts, tokens, accepted, emitted] = Quantity::ALL.map(|quantity| sums.get(quantity));
    let known = |of: &[Quantity]| of.iter().all(|&quantity| !doubtful.has(quantity));
    if (drafts == 0 || !known(&[Quantity::Drafts])) && (tokens == 0 || !known(&[Quantity::DraftTokens])) {
        return 0;
    }
    let mut gauges = 0;
    if tokens > 0 && accepted <= tokens && known(&[Quantity::DraftTokens, Quantity::Accepted]) {
        gauges |= gauge::ACCEPTANCE_RATE;
    }
    let all_drafts = known(&[Quantity::Drafts, Quantity::DraftTokens]);
    if drafts > 0 && emitted <= sums.max_emitted() && all_drafts && known(&[Quantity::Emitted]) {
        gauges |= gauge::EFFICIENCY;
    }
    let plausible = accepted <= tokens || !known(&[Quantity::DraftTokens]);
    if drafts > 0 && plausible && known(&[Quantity::Drafts, Quantity::Accepted]) {
        gauges |= gauge::ACCEPTANCE_LENGTH;
    }
    if num_spec_tokens > 0 {
        gauges |= gauge::NUM_SPEC_TOKENS;
    }
    gauges
}

/// How old a window's end may be before its gauges are stale: the longest of two intervals, twice the window's own
/// length, and ten seconds.
#[cfg(feature = "otel")]
pub(crate) fn lifetime(interval: Duration, length: Duration) -> Duration {
    interval.max(length).saturating_mul(2).max(Duration::from_secs(10))
}

#[cfg(test)]
mod tests {
    use super::{Amounts, Quantities, Quantity, gauge, gauges};

    #[test]
    fn no_gauge_is_shown_that_would_be_above_what_is_possible() {
        let none = Quantities::NONE;
        let all = gauge::ACCEPTANCE_RATE | gauge::EFFICIENCY | gauge::ACCEPTANCE_LENGTH;
        assert_eq!(gauges(&Amounts::new(2, 8, 8, 10), none, 0), all);
        assert_eq!(gauges(&Amounts::new(2, 8, 9, 10), none, 0), gauge::EFFICIENCY);
        assert_eq!(gauges(&Amounts::new(2, 8, 8, 11), none, 0), gauge::ACCEPTANCE_RATE | gauge::ACCEPTANCE_LENGTH);
        assert_eq!(gauges(&Amounts::new(0, 0, 0, 0), none, 4), 0);
        assert_eq!(gauges(&Amounts::new(2, 8, 3, 4), Quantities::of(Quantity::Emitted), 4) & gauge::EFFICIENCY, 0);
        assert_eq!(gauges(&Amounts::new(2, 8, 3, 4), Quantities::ALL, 4), 0);
    }
}
