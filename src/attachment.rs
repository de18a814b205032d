//! An engine's source while it is attached: its collector, its last sample, and what waits for the next.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::collector::Collector;
use crate::delta::{Delta, first};
use crate::gpu_time::PhasesInStep;
use crate::marks::Mark;
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::sample::Sample;
use crate::slot::Slot;
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
    /// Taken of steps that did not close in time, and have not closed since.
    pub(crate) taken: Amounts,
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
            let layout = source.layout().bounded();
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
            taken: Amounts::default(),
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

    /// A step closes: what was taken of it before.
    pub(crate) fn closes_taken(&mut self, slot: &Slot) -> Amounts {
        let taken = slot.taken();
        self.taken = self.taken.minus(&taken);
        taken
    }

    /// What has been published of steps that are not closed; `None` where the fields of others can't tell.
    pub(crate) fn published_ahead(&self) -> Option<Amounts> {
        let Tally { amounts, missing, contradicted, .. } = &self.by_fields;
        let told = Quantities::ALL.without(missing.with(*contradicted));
        if !self.layout.quantities().without(told).is_empty() {
            return None;
        }
        let mut ahead = self.by_source.minus(&self.owed).minus(amounts);
        ahead.add(&self.taken);
        Some(ahead)
    }

    /// Whether `metrics` stays at the last sample without a mark: between two of them the drafts may be behind the source.
    pub(crate) fn goes_by_samples(&self) -> bool {
        let is_whole_at_each_close = self.on_host && self.counts_drafts();
        !self.collector.is_dead() && !is_whole_at_each_close
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

/// A source's answer; a panic is a death.
pub(crate) fn guarded<T>(call: impl FnOnce() -> Result<T, SourceError>) -> Result<T, SourceError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        // What was thrown may panic as well when it is dropped.
        std::mem::forget(payload);
        Err(SourceError::Dead(Dead::Panicked))
    })
}

impl std::fmt::Debug for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachment")
            .field("layout", &self.layout)
            .field("collector", &self.collector)
            .finish_non_exhaustive()
    }
}
