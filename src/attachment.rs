//! An engine's source while it is attached: its collector, its last sample, and what waits for the next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::collector::Collector;
use crate::gpu_time::PhasesInStep;
use crate::marks::{GpuTimes, Mark};
use crate::published::gave;
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::source::{CounterSource, Counters, Dead, Failed, Layout, Snapshot, SourceError};
use crate::tally::Tally;

/// A source that is attached to an engine.
pub(crate) struct Attachment {
    source: Box<dyn CounterSource>,
    layout: Layout,
    pub(crate) collector: Collector,
    pub(crate) on_host: bool,
    /// The source was asked at attach, and times steps.
    pub(crate) times_steps: bool,
    /// It has not said since that it never will again.
    can_mark: bool,
    /// The phases of the step that is being timed.
    pub(crate) phases: PhasesInStep,
    /// The counters at the last sample, at this one, and what lies between.
    last: Counters,
    now: Counters,
    delta: Counters,
    /// Positions that the source has counted at: beyond them all is zero.
    seen: usize,
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
    /// It has taken the fields of steps that did not close in time: the drafts may be behind the source.
    pub(crate) has_taken: bool,
    /// Steps that were left when it started belong to it, closed or not.
    pub(crate) follows_exits: bool,
    /// No other step is under way, so that the source and the fields can be compared.
    pub(crate) settles: bool,
    /// It was started by a flush, and ends the window.
    pub(crate) by_flush: bool,
    /// The step that started it has marks around it, and nothing else is between them.
    pub(crate) is_timed: bool,
    /// What the device took for that step.
    pub(crate) gpu_times: Option<GpuTimes>,
}

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

/// A source whose counters have been read once, as its zero.
pub(crate) struct Zeroed {
    source: Box<dyn CounterSource>,
    layout: Layout,
    on_host: bool,
    times_steps: bool,
    zero: Counters,
}

impl Zeroed {
    /// Asks a source what it is, and reads its counters, for which it may take so long.
    pub(crate) fn read(source: impl CounterSource + 'static, patience: Duration) -> Result<Self, SourceError> {
        let mut source: Box<dyn CounterSource> = Box::new(source);
        let read = guarded(|| {
            let layout = source.layout();
            let (on_host, times_steps) = (source.is_on_host(), source.times_steps());
            let mut zero = Counters::for_layout(layout);
            source.start()?;
            match source.wait(&mut zero, patience)? {
                Snapshot::Landed => zero.fit(&Counters::for_layout(layout)),
                Snapshot::Pending => return Err(SourceError::Failed(Failed::Timeout)),
            }
            Ok((layout, on_host, times_steps, zero))
        });
        match read {
            Ok((layout, on_host, times_steps, zero)) => Ok(Self { source, layout, on_host, times_steps, zero }),
            Err(error) => {
                let_go(source);
                Err(error)
            }
        }
    }
}

impl Attachment {
    /// A source that is ready, with a collector that has just begun.
    pub(crate) fn new(zeroed: Zeroed, collector: Collector) -> Self {
        let Zeroed { source, layout, on_host, times_steps, zero } = zeroed;
        let blank = Counters::for_layout(layout);
        Self {
            source,
            layout,
            collector,
            on_host,
            times_steps,
            can_mark: times_steps,
            phases: PhasesInStep::default(),
            seen: zero.positions_seen(0),
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

    /// Sets a mark; false where that went wrong.
    pub(crate) fn mark(&mut self, mark: Mark) -> bool {
        if !self.can_mark {
            return false;
        }
        let marked = guarded(|| self.source.mark(mark));
        self.can_mark = !matches!(marked, Err(SourceError::Dead(_)));
        marked.is_ok()
    }

    /// The copy has landed: what was marked before it?
    pub(crate) fn take_gpu_times(&mut self) {
        if self.sample.is_timed {
            let times = guarded(|| Ok(self.source.gpu_times()));
            self.can_mark &= times.is_ok();
            self.sample.gpu_times = times.ok().flatten().map(|times| self.phases.only_whole(times));
        }
    }

    /// What the source has counted up to the copy that has landed, since the last time that this was asked.
    pub(crate) fn take_delta(&mut self) -> Delta<'_> {
        self.now.fit(&self.last);
        self.seen = self.now.positions_seen(self.seen);
        let restarted = self.delta.set_between(&mut self.last, &self.now, self.layout, self.seen);
        if restarted {
            self.delta.copy_from(&self.now);
        }
        Delta {
            amounts: self.layout.amounts(&self.delta),
            accepted_per_position: first(&self.delta.accepted_per_position, self.seen),
            draft_per_position: first(&self.delta.draft_per_position, self.seen),
            contradictory: [self.delta.accepted_exceeds_draft, self.delta.emitted_exceeds_possible],
            restarted,
        }
    }

    /// Whether the source has counted nothing since the last sample, as far as its drafts tell.
    pub(crate) fn is_unchanged(&self) -> bool {
        let told = |counters: &Counters| {
            [counters.draft_tokens, counters.accepted_exceeds_draft, counters.emitted_exceeds_possible]
        };
        self.counts_drafts() && self.layout.draft_tokens && told(&self.now) == told(&self.last)
    }

    /// Whether a copy is on its way, or something was counted that no sample holds; `held` are the steps that wait.
    pub(crate) fn has_unpublished(&self, held: &Tally) -> bool {
        self.collector.flight().is_some()
            || !held.is_empty()
            || !self.sample.tally.is_empty()
            || self.owed != Amounts::default()
    }

    /// Lets go of the source.
    pub(crate) fn release(self) {
        let_go(self.source);
    }
}

/// Drops a source, whose `Drop` may do what it likes.
fn let_go(source: Box<dyn CounterSource>) {
    let _ = guarded(move || {
        drop(source);
        Ok(())
    });
}

fn first(counts: &[u64], seen: usize) -> &[u64] {
    counts.get(..seen).unwrap_or(counts)
}

/// A source's answer; a panic is a death.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        // What was thrown may panic as well when it is dropped.
        std::mem::forget(payload);
        Err(SourceError::Dead(Dead::Panicked))
    })
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

    /// The bits of what a source of this layout gives: see [`gave`].
    pub(crate) fn given(self) -> u64 {
        let per_position = |positions: usize, bit: u64| if positions > 0 { bit } else { 0 };
        u64::from(self.quantities().bits())
            | per_position(self.accepted_positions, gave::ACCEPTED_PER_POSITION)
            | per_position(self.draft_positions, gave::DRAFT_PER_POSITION)
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
    /// Becomes what lies between `before` and `now`, and brings `before` up to date; true if a word of the layout fell.
    fn set_between(&mut self, before: &mut Self, now: &Self, layout: Layout, seen: usize) -> bool {
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
    fn positions_seen(&self, before: usize) -> usize {
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
    fn fit(&mut self, missing: &Self) {
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
    fn copy_from(&mut self, other: &Self) {
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

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment")
            .field("layout", &self.layout)
            .field("collector", &self.collector)
            .finish_non_exhaustive()
    }
}
