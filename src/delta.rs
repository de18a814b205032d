//! What a source has counted between two samples: its words, subtracted.

use crate::published::gave;
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::source::{Counters, Layout};

/// What a source counted between two samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delta<'a> {
    pub(crate) amounts: Amounts,
    pub(crate) accepted_per_position: &'a [u64],
    pub(crate) draft_per_position: &'a [u64],
    /// Drafts that contradict themselves: more accepted, more emitted than there can be.
    pub(crate) contradictory: [u64; 2],
    /// A word had fallen: these are the words themselves.
    pub(crate) restarted: bool,
}

impl Layout {
    /// More positions than any engine can have are not asked for.
    pub(crate) fn bounded(self) -> Self {
        const MOST_POSITIONS: usize = 1 << 12;
        Self {
            accepted_positions: self.accepted_positions.min(MOST_POSITIONS),
            draft_positions: self.draft_positions.min(MOST_POSITIONS),
            ..self
        }
    }

    /// The quantities that a source of this layout counts.
    pub(crate) fn quantities(self) -> Quantities {
        let mut own = Quantities::of(Quantity::Accepted);
        let per_position = self.draft_positions > 0;
        for (quantity, counted) in [
            (Quantity::Emitted, self.emitted),
            (Quantity::Drafts, self.drafts || per_position),
            (Quantity::DraftTokens, self.draft_tokens || per_position),
        ] {
            if counted {
                own = own.with(Quantities::of(quantity));
            }
        }
        own
    }

    /// The bits of what a source of this layout gives: see [`gave`].
    pub(crate) fn given(self) -> u64 {
        let per_position = |positions: usize, bit: u64| if positions > 0 { bit } else { 0 };
        u64::from(self.quantities().bits())
            | per_position(self.accepted_positions, gave::ACCEPTED_PER_POSITION)
            | per_position(self.draft_positions, gave::DRAFT_PER_POSITION)
    }

    /// The words of this layout as amounts. Drafts follow from the positions where they have no word of their own.
    pub(crate) fn amounts(self, counters: &Counters) -> Amounts {
        let per_position = &counters.draft_per_position;
        let drafts = if self.drafts { counters.drafts } else { per_position.first().copied().unwrap_or_default() };
        let draft_tokens = if self.draft_tokens {
            counters.draft_tokens
        } else {
            per_position.iter().fold(0_u64, |sum, &tokens| sum.saturating_add(tokens))
        };
        let emitted = if self.emitted { counters.emitted } else { 0 };
        Amounts::new(drafts, draft_tokens, counters.accepted, emitted)
    }
}

impl Counters {
    /// Becomes what lies between `before` and `now`, and brings `before` up to date; true if a word of the layout fell.
    pub(crate) fn set_between(&mut self, before: &mut Self, now: &Self, layout: Layout, seen: usize) -> bool {
        let step = |delta: &mut u64, before: &mut u64, now: u64| {
            let fell = now < *before;
            *delta = now.wrapping_sub(*before);
            *before = now;
            fell
        };
        let steps = |delta: &mut [u64], before: &mut [u64], now: &[u64]| {
            let words = delta.iter_mut().zip(before).zip(now).take(seen);
            words.fold(false, |fell, ((delta, before), now)| fell | step(delta, before, *now))
        };
        step(&mut self.accepted, &mut before.accepted, now.accepted)
            | (step(&mut self.emitted, &mut before.emitted, now.emitted) && layout.emitted)
            | (step(&mut self.drafts, &mut before.drafts, now.drafts) && layout.drafts)
            | (step(&mut self.draft_tokens, &mut before.draft_tokens, now.draft_tokens) && layout.draft_tokens)
            | steps(&mut self.accepted_per_position, &mut before.accepted_per_position, &now.accepted_per_position)
            | steps(&mut self.draft_per_position, &mut before.draft_per_position, &now.draft_per_position)
            | step(&mut self.accepted_exceeds_draft, &mut before.accepted_exceeds_draft, now.accepted_exceeds_draft)
            | step(
                &mut self.emitted_exceeds_possible,
                &mut before.emitted_exceeds_possible,
                now.emitted_exceeds_possible,
            )
    }

    /// How many positions have something in them, given that so many had before.
    pub(crate) fn positions_seen(&self, before: usize) -> usize {
        let beyond = |counts: &[u64]| counts.iter().skip(before).fold(0, |all, count| all | count) != 0;
        if beyond(&self.accepted_per_position) || beyond(&self.draft_per_position) {
            let end =
                |counts: &[u64]| counts.iter().rposition(|&count| count > 0).map_or(0, |last| last.saturating_add(1));
            before.max(end(&self.accepted_per_position)).max(end(&self.draft_per_position))
        } else {
            before
        }
    }

    /// Gives the positions their length again, if a source has put other boxes in their place: what is missing is as in
    /// `missing`.
    #[inline]
    pub(crate) fn fit(&mut self, missing: &Self) {
        if self.lengths() != missing.lengths() {
            fit(&mut self.accepted_per_position, &missing.accepted_per_position);
            fit(&mut self.draft_per_position, &missing.draft_per_position);
        }
    }

    #[inline]
    fn lengths(&self) -> [usize; 2] {
        [self.accepted_per_position.len(), self.draft_per_position.len()]
    }

    /// Copies the words without a new allocation.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.accepted = other.accepted;
        self.emitted = other.emitted;
        self.drafts = other.drafts;
        self.draft_tokens = other.draft_tokens;
        self.accepted_exceeds_draft = other.accepted_exceeds_draft;
        self.emitted_exceeds_possible = other.emitted_exceeds_possible;
        let copy = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        copy(&mut self.accepted_per_position, &other.accepted_per_position);
        copy(&mut self.draft_per_position, &other.draft_per_position);
    }
}

#[cold]
fn fit(counts: &mut Box<[u64]>, missing: &[u64]) {
    let kept = counts.iter().take(missing.len());
    *counts = kept.chain(missing.iter().skip(counts.len())).copied().collect();
}

pub(crate) fn first(counts: &[u64], seen: usize) -> &[u64] {
    counts.get(..seen).unwrap_or(counts)
}
