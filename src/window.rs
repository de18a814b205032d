//! A window: when it ends, which gauges it has, and how long they may be shown.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
#[cfg(feature = "otel")]
use std::time::Duration;

use crate::engine::Engine;
use crate::published::{Writing, word};
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::shared::Shared;

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

/// The window that has not ended.
#[derive(Debug)]
pub(crate) struct OpenWindow {
    start: AtomicU64,
    /// The totals at its start.
    base: [AtomicU64; Quantity::COUNT],
    /// Quantities that can't be known for it.
    doubtful: AtomicU8,
}

impl OpenWindow {
    pub(crate) const fn new() -> Self {
        Self {
            start: AtomicU64::new(UNBEGUN),
            base: [const { AtomicU64::new(0) }; Quantity::COUNT],
            doubtful: AtomicU8::new(0),
        }
    }

    #[inline]
    pub(crate) fn doubt(&self, quantities: Quantities) {
        if !quantities.is_empty() {
            self.doubtful.store(self.doubtful.load(Ordering::Relaxed) | quantities.bits(), Ordering::Relaxed);
        }
    }

    fn base(&self) -> Amounts {
        Amounts::from_fn(|quantity| self.base[quantity as usize].load(Ordering::Relaxed))
    }
}

/// The start of a window that no publication has begun yet: whatever the clock says, an interval away from it.
const UNBEGUN: u64 = 1 << 63;

/// Why a window may end before the interval has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It may not.
    OnTime,
    /// A flush ends it, if it holds drafts.
    Early,
}

impl Engine {
    /// Ends the open window if an interval has passed since it began.
    #[inline]
    pub(crate) fn turn_window(&self, words: &Writing<'_>, now: u64, shared: &Shared, end: End) {
        let length = now.wrapping_sub(self.window.start.load(Ordering::Relaxed));
        if length >= shared.interval_ticks {
            self.begin_or_end_window(words, now, length);
        } else if end == End::Early {
            self.end_window_with_drafts(words, now, length);
        }
    }

    /// Whether the open window has lasted an interval, or has not begun.
    pub(crate) fn window_is_due(&self, now: u64, shared: &Shared) -> bool {
        now.wrapping_sub(self.window.start.load(Ordering::Relaxed)) >= shared.interval_ticks
    }

    #[cold]
    fn begin_or_end_window(&self, words: &Writing<'_>, now: u64, length: u64) {
        let start = self.window.start.load(Ordering::Relaxed);
        if start == UNBEGUN {
            // The first publication ever: nothing was counted before it.
            self.window.start.store(now, Ordering::Relaxed);
        } else if now > start {
            // Clocks of two processors can differ by a little: a window does not end before it began.
            self.end_window(words, now, length);
        }
    }

    #[cold]
    fn end_window_with_drafts(&self, words: &Writing<'_>, now: u64, length: u64) {
        let sums = self.published_amounts().minus(&self.window.base());
        if sums.get(Quantity::Drafts) > 0 || sums.get(Quantity::DraftTokens) > 0 {
            self.end_window(words, now, length);
        }
    }

    #[cold]
    fn end_window(&self, words: &Writing<'_>, now: u64, length: u64) {
        let sums = self.published_amounts().minus(&self.window.base());
        let given = Quantities::from_bits(self.published.get(word::GAVE) as u8);
        let in_doubt = Quantities::from_bits(self.window.doubtful.load(Ordering::Relaxed));
        let doubtful = in_doubt.with(Quantities::ALL.without(given));
        let num_spec_tokens = self.published.get(word::NUM_SPEC_TOKENS);
        words.set(word::WINDOW_GAUGES, gauges(&sums, doubtful, num_spec_tokens));
        words.set(word::WINDOW_NUM_SPEC_TOKENS, num_spec_tokens);
        for quantity in Quantity::ALL {
            words.set(word::WINDOW_SUMS.wrapping_add(quantity as usize), sums.get(quantity));
        }
        words.set(word::WINDOW_END, now);
        words.set(word::WINDOW_LENGTH, length);
        self.begin_window(now);
    }

    /// Begins a window `now`, with the totals as they are.
    pub(crate) fn begin_window(&self, now: u64) {
        self.window.doubtful.store(0, Ordering::Relaxed);
        self.begin_window_from(now, &self.published_amounts());
    }

    /// Begins a window `now` that counts from these totals, with what is in doubt in the open one.
    pub(crate) fn begin_window_from(&self, now: u64, amounts: &Amounts) {
        self.window.start.store(now, Ordering::Relaxed);
        for quantity in Quantity::ALL {
            self.window.base[quantity as usize].store(amounts.get(quantity), Ordering::Relaxed);
        }
    }
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
