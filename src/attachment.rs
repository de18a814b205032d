//! An engine's source while it is attached: its collector, its last sample, and what waits for the next.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::collector::Collector;
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::source::{CounterSource, Counters, Dead, Layout, Snapshot, SourceError};
use crate::tally::Tally;

/// A source that is attached to an engine.
pub(crate) struct Attachment {
    source: Box<dyn CounterSource>,
    layout: Layout,
    pub(crate) collector: Collector,
    pub(crate) on_host: bool,
    /// The counters at the last sample, at this one, and what lies between.
    last: Counters,
    now: Counters,
    delta: Counters,
    /// The copy in flight.
    pub(crate) sample: Sample,
    /// What the fields gave and what the source counted since the last sample without a mark.
    pub(crate) by_fields: Tally,
    pub(crate) by_source: Amounts,
    /// Counted by the source, held back by a sample with a mark.
    pub(crate) owed: Amounts,
}

/// What belongs to a copy in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) tally: Tally,
    /// It was started while another step was under way.
    pub(crate) overlaps: bool,
    /// Steps that were left when it started belong to it, closed or not.
    pub(crate) follows_exits: bool,
    /// It was started by a flush, and ends the window.
    pub(crate) by_flush: bool,
}

/// What a source counted between two samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delta<'a> {
    pub(crate) amounts: Amounts,
    pub(crate) accepted_per_position: &'a [u64],
    pub(crate) draft_per_position: &'a [u64],
    /// A word had fallen: these are the words themselves.
    pub(crate) restarted: bool,
}

impl Attachment {
    /// A source whose zero is `zero`.
    pub(crate) fn new(source: Box<dyn CounterSource>, zero: Counters, collector: Collector) -> Self {
        let layout = source.layout();
        let on_host = source.is_on_host();
        let blank = Counters::for_layout(layout);
        Self {
            source,
            layout,
            collector,
            on_host,
            last: zero,
            now: blank.clone(),
            delta: blank,
            sample: Sample::default(),
            by_fields: Tally::default(),
            by_source: Amounts::default(),
            owed: Amounts::default(),
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the source counts its drafts, and so is consistent by itself.
    pub(crate) fn counts_drafts(&self) -> bool {
        let own = self.layout.quantities();
        own.has(Quantity::Drafts) && own.has(Quantity::DraftTokens)
    }

    pub(crate) fn start(&mut self) -> Result<(), SourceError> {
        guarded(|| self.source.start())
    }

    pub(crate) fn poll(&mut self) -> Result<Snapshot, SourceError> {
        guarded(|| self.source.poll(&mut self.now))
    }

    /// What the source has counted up to the copy that has landed, since the last time that this was asked.
    pub(crate) fn take_delta(&mut self) -> Delta<'_> {
        let restarted = self.now.falls_below(&self.last, self.layout);
        if restarted {
            self.delta.copy_from(&self.now);
        } else {
            self.delta.set_difference(&self.now, &self.last);
        }
        self.last.copy_from(&self.now);
        Delta {
            amounts: self.layout.amounts(&self.delta),
            accepted_per_position: &self.delta.accepted_per_position,
            draft_per_position: &self.delta.draft_per_position,
            restarted,
        }
    }

    /// Whether a copy is on its way, or something was counted that no sample holds; `held` are the steps that wait.
    pub(crate) fn has_unpublished(&self, held: &Tally) -> bool {
        self.collector.flight().is_some()
            || !held.is_empty()
            || !self.sample.tally.is_empty()
            || self.owed != Amounts::default()
    }

    /// Lets go of the source; its `Drop` may do what it likes.
    pub(crate) fn release(self) {
        let source = self.source;
        // A panic of the source's `Drop` is the source's own affair.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(source)));
    }
}

/// A source's answer; a panic is a death.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(SourceError::Dead(Dead::Panicked)))
}

impl Layout {
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

    /// The words of this layout as amounts. Drafts follow from the positions where they have no word of their own.
    fn amounts(self, counters: &Counters) -> Amounts {
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
    /// Whether a word of the layout is below what it was.
    fn falls_below(&self, before: &Self, layout: Layout) -> bool {
        let falls = |now: &[u64], before: &[u64]| now.iter().zip(before).any(|(now, before)| now < before);
        self.accepted < before.accepted
            || layout.emitted && self.emitted < before.emitted
            || layout.drafts && self.drafts < before.drafts
            || layout.draft_tokens && self.draft_tokens < before.draft_tokens
            || falls(&self.accepted_per_position, &before.accepted_per_position)
            || falls(&self.draft_per_position, &before.draft_per_position)
    }

    fn set_difference(&mut self, now: &Self, before: &Self) {
        self.accepted = now.accepted.saturating_sub(before.accepted);
        self.emitted = now.emitted.saturating_sub(before.emitted);
        self.drafts = now.drafts.saturating_sub(before.drafts);
        self.draft_tokens = now.draft_tokens.saturating_sub(before.draft_tokens);
        let subtract = |to: &mut [u64], now: &[u64], before: &[u64]| {
            for ((to, now), before) in to.iter_mut().zip(now).zip(before) {
                *to = now.saturating_sub(*before);
            }
        };
        subtract(&mut self.accepted_per_position, &now.accepted_per_position, &before.accepted_per_position);
        subtract(&mut self.draft_per_position, &now.draft_per_position, &before.draft_per_position);
    }

    /// Copies the words without a new allocation.
    fn copy_from(&mut self, other: &Self) {
        self.accepted = other.accepted;
        self.emitted = other.emitted;
        self.drafts = other.drafts;
        self.draft_tokens = other.draft_tokens;
        let copy = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        copy(&mut self.accepted_per_position, &other.accepted_per_position);
        copy(&mut self.draft_per_position, &other.draft_per_position);
    }
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment")
            .field("layout", &self.layout)
            .field("collector", &self.collector)
            .finish_non_exhaustive()
    }
}
