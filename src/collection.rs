//! A collection: from the start of a copy to what becomes of it. For the holder of an engine's baton, on its thread.

use std::sync::atomic::Ordering;

use crate::attachment::Attachment;
use crate::books::{Books, Prepaid};
use crate::collector::Flight;
use crate::engine::{Engine, Holding};
use crate::marks::{Mark, Part};
use crate::outcome::{Outcome, Reason};
use crate::published::word;
use crate::quantity::Amounts;
use crate::sample::Sample;
use crate::shared::Shared;
use crate::slot::{Since, Slot};
use crate::source::{Snapshot, SourceError};
use crate::step::Step;
use crate::ticks::NEVER;
#[cfg(feature = "otel-trace")]
use crate::trace::Ended;

/// What a source is doing, as a published word.
pub(crate) mod state {
    pub(crate) const NONE: u64 = 0;
    pub(crate) const ON_HOST: u64 = 1;
    pub(crate) const IDLE: u64 = 2;
    pub(crate) const IN_FLIGHT: u64 = 3;
    pub(crate) const BACKING_OFF: u64 = 4;
    pub(crate) const DEAD: u64 = 5;
}

/// What came of a try to start a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    Yes(u64),
    /// The step that asked for it was entered again.
    NoLonger,
    Refused(SourceError),
}

/// What the engine's steps make of a copy that has landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// The steps that belong to it are accounted for.
    Whole,
    /// One of them is not closed yet, or not accounted for.
    Awaits,
    /// It holds half a step, or belongs to the time before a rebase.
    Void,
}

impl Holding<'_> {
    /// Looks at the copy in flight, and publishes it if it has landed and its steps have closed.
    pub(crate) fn poll_copy(&self, now: u64, patient: bool) {
        let Some(mut books) = self.engine.books() else { return };
        let Some(attachment) = books.attachment.as_mut() else { return };
        let Some(flight) = attachment.collector.flight() else { return };
        if flight.landed.is_none() {
            match attachment.poll() {
                Ok(Snapshot::Landed) => {
                    attachment.collector.landed(now);
                    attachment.take_gpu_times();
                }
                Ok(Snapshot::Pending) | Err(SourceError::Busy(_)) => {
                    attachment.collector.pending(now);
                    return self.engine.show(attachment, self.shared);
                }
                Err(error) => return self.fail(&mut books, now, error),
            }
        }
        match self.fit(attachment, flight) {
            Fit::Void => return self.skip_void(attachment),
            Fit::Awaits if patient || !attachment.collector.has_waited(now) => {
                return self.engine.show(attachment, self.shared);
            }
            Fit::Awaits => self.take_open_steps(attachment, flight),
            Fit::Whole => {}
        }
        self.resolve(&mut books, flight, now);
    }

    /// Starts a copy, unless one has become due in the meantime.
    pub(crate) fn start_copy_if_due(&self, now: u64, starter: Option<&Slot>, over: u64) {
        let Some(mut books) = self.engine.books() else { return };
        let due = books.attachment.as_ref().is_some_and(|attachment| now >= attachment.collector.due());
        if due {
            let is_timed = self.engine.hot.timed.load(Ordering::SeqCst) == over && over != 0;
            self.start_copy(&mut books, now, starter, Sample { is_timed, ..Sample::default() }, true);
        }
    }

    /// Starts a copy. `count_busy` says whether a busy source is counted as a skipped collection.
    pub(crate) fn start_copy(
        &self,
        books: &mut Books,
        now: u64,
        starter: Option<&Slot>,
        sample: Sample,
        count_busy: bool,
    ) -> Option<Started> {
        let hot = &self.engine.hot;
        // Whatever becomes of this copy, the marks made so far are of no use to another.
        hot.timed.store(0, Ordering::SeqCst);
        let attachment = books.attachment.as_mut()?;
        let generation = self.shared.generation.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        attachment.collector.prepare(generation);
        let follows_exits = !hot.futures.load(Ordering::SeqCst);
        if follows_exits {
            // From here on a step that is entered again makes the copy void; one that was before is seen below.
            hot.follows_exits.store(generation, Ordering::SeqCst);
        }
        if starter.is_some_and(|starter| starter.visits().inside() > 0) {
            hot.follows_exits.store(0, Ordering::SeqCst);
            return Some(Started::NoLonger);
        }
        let is_timed = sample.is_timed && attachment.mark(Mark::End(Part::Step));
        attachment.sample = Sample { tally: self.engine.held.take(), follows_exits, is_timed, ..sample };
        let error = match attachment.start() {
            Ok(()) => {
                // Asked after the start: what a step has submitted up to here may be in the copy.
                let settles = !self.overlaps(generation, follows_exits);
                attachment.sample.settles = settles;
                attachment.sample.is_timed &= settles;
                attachment.sample.overlaps = !settles && !attachment.counts_drafts();
                attachment.collector.started(now);
                #[cfg(feature = "otel-trace")]
                if self.shared.tracing.is_some() {
                    self.engine.trace.started();
                }
                self.engine.show(attachment, self.shared);
                return Some(Started::Yes(generation));
            }
            Err(error) => error,
        };
        hot.follows_exits.store(0, Ordering::SeqCst);
        match error {
            SourceError::Busy(_) => {
                self.engine.put_back(attachment);
                if count_busy {
                    self.engine.end_collection(Outcome::Skipped, error.into(), self.shared);
                }
            }
            _ => self.fail(books, now, error),
        }
        Some(Started::Refused(error))
    }

    /// Whether a step other than those that the copy belongs to is under way.
    fn overlaps(&self, generation: u64, follows_exits: bool) -> bool {
        self.are_under_way(None, generation, follows_exits)
    }

    /// Whether a step is under way besides this one, which is just beginning.
    pub(crate) fn is_another_under_way(&self, beginning: &Slot) -> bool {
        self.are_under_way(Some(beginning), NEVER, !self.engine.hot.futures.load(Ordering::SeqCst))
    }

    fn are_under_way(&self, except: Option<&Slot>, generation: u64, follows_exits: bool) -> bool {
        self.engine.steps_but(except, self.shared).any(|slot| {
            let visits = slot.visits();
            let over = follows_exits && visits.inside() == 0 && slot.left_at().before(generation);
            visits.ever_entered() && !over
        })
    }

    fn fit(&self, attachment: &Attachment, flight: Flight) -> Fit {
        let Sample { follows_exits, settles, .. } = attachment.sample;
        // Each step is looked at once: between two looks it could be entered again.
        let of_step = |slot: &Slot| match slot.since(flight.generation) {
            Some(Since::Over) => Fit::Awaits,
            // The thread that enters it says so a little later. With a step under way at the start the copy has a mark, and
            // needs to be whole no more.
            Some(Since::EnteredAgain) if settles => Fit::Void,
            _ => Fit::Whole,
        };
        let fit = if follows_exits {
            let steps = self.shared.steps.of_engine(self.engine.index);
            steps.fold(Fit::Whole, |fit, slot| fit.max(of_step(slot)))
        } else {
            Fit::Whole
        };
        // Asked last: a step that was entered again, and left again, looks like one of a later copy.
        if self.engine.hot.void.load(Ordering::SeqCst) == flight.generation { Fit::Void } else { fit }
    }

    /// Takes the fields of steps that do not close, as they are; the rest of them belongs to a later sample.
    #[cold]
    fn take_open_steps(&self, attachment: &mut Attachment, flight: Flight) {
        // Also if there is none to take any more: one that is entered again just now is half in this copy.
        attachment.sample.has_taken = true;
        let steps = self.shared.steps.of_engine(self.engine.index);
        for slot in steps.filter(|slot| slot.since(flight.generation) == Some(Since::Over)) {
            let step = Step::of(&slot.fields(), attachment.layout().quantities(), false);
            if slot.take(&step.amounts) {
                attachment.sample.tally.add(&step, &Amounts::default());
                attachment.taken.add(&step.amounts);
            }
        }
    }

    /// The copy holds half a step, or what a rebase has put behind it.
    fn skip_void(&self, attachment: &mut Attachment) {
        self.engine.put_back(attachment);
        attachment.collector.voided();
        self.engine.end_collection(Outcome::Skipped, Reason::HalfStep, self.shared);
        self.engine.show(attachment, self.shared);
    }

    fn resolve(&self, books: &mut Books, flight: Flight, now: u64) {
        let Some(attachment) = books.attachment.as_mut() else { return };
        attachment.collector.resolved(now);
        {
            let words = self.engine.published.write();
            words.add(word::collection(Outcome::Resolved, Reason::None), 1);
            words.add(word::COLLECTION_TICKS, now.saturating_sub(flight.started));
        }
        #[cfg(feature = "otel-trace")]
        let (before, has_rates) =
            (self.engine.published_amounts(), !attachment.sample.overlaps && !attachment.sample.has_taken);
        self.engine.publish_sample(books, now, self.shared);
        #[cfg(feature = "otel-trace")]
        self.engine.trace_end(
            &Ended {
                outcome: Outcome::Resolved,
                reason: Reason::None,
                amounts: self.engine.published_amounts().minus(&before),
                has_rates,
            },
            self.shared,
        );
        if let Some(attachment) = &books.attachment {
            self.engine.show(attachment, self.shared);
        }
    }

    #[cold]
    fn fail(&self, books: &mut Books, now: u64, error: SourceError) {
        let Some(attachment) = books.attachment.as_mut() else { return };
        if let SourceError::Dead(_) = error {
            self.engine.end_collection(Outcome::Lost, error.into(), self.shared);
            self.engine.bury_source(books, None, now, self.shared);
        } else {
            self.engine.put_back(attachment);
            attachment.collector.failed(now);
            self.engine.end_collection(Outcome::Failed, error.into(), self.shared);
            self.engine.show(attachment, self.shared);
        }
    }
}

impl Engine {
    /// The copy in flight comes to nothing: its steps wait for the next.
    fn put_back(&self, attachment: &mut Attachment) {
        self.held.put_back(std::mem::take(&mut attachment.sample).tally);
    }

    #[cfg_attr(not(feature = "otel-trace"), expect(unused_variables, reason = "spans are made with it"))]
    pub(crate) fn end_collection(&self, outcome: Outcome, reason: Reason, shared: &Shared) {
        self.published.write().add(word::collection(outcome, reason), 1);
        #[cfg(feature = "otel-trace")]
        self.trace_end(&Ended { outcome, reason, amounts: Amounts::default(), has_rates: false }, shared);
    }

    /// The source is dead: the engine goes on as if it were detached, and what is in no sample is dropped.
    pub(crate) fn bury_source(&self, books: &mut Books, closing: Option<&Slot>, now: u64, shared: &Shared) {
        let Books { attachment: Some(attachment), prepaid, .. } = books else { return };
        attachment.collector.died();
        *prepaid = self.prepaid(attachment, closing, now, shared);
        self.held.take();
        attachment.sample = Sample::default();
        attachment.owed = Amounts::default();
        self.count_by_fields(prepaid, now);
        self.show(attachment, shared);
    }

    /// What has been published of steps that are open, where the source ends `now`.
    fn prepaid(&self, attachment: &Attachment, closing: Option<&Slot>, now: u64, shared: &Shared) -> Prepaid {
        if self.is_begun_by(now, closing, shared) {
            let ahead = attachment.published_ahead();
            Prepaid {
                amounts: ahead.unwrap_or_default(),
                is_unknown: ahead.is_none(),
                until: now,
                is_before_base: false,
            }
        } else {
            Prepaid::default()
        }
    }

    /// Whether a step other than `closing` had been entered by this tick, and is not accounted for.
    pub(crate) fn is_begun_by(&self, tick: u64, closing: Option<&Slot>, shared: &Shared) -> bool {
        self.steps_but(closing, shared).any(|slot| slot.has_begun_by(tick))
    }

    /// The engine's steps that are not accounted for, but for this one.
    fn steps_but<'a>(&self, except: Option<&'a Slot>, shared: &'a Shared) -> impl Iterator<Item = &'a Slot> {
        let steps = shared.steps.of_engine(self.index);
        steps.filter(move |slot| !except.is_some_and(|except| std::ptr::eq(*slot, except)))
    }

    /// From here on the fields alone count.
    fn count_by_fields(&self, prepaid: &Prepaid, now: u64) {
        self.hot.count_by_fields(!prepaid.is_none());
        self.hot.due.store(NEVER, Ordering::Relaxed);
        self.hot.poll_at.store(NEVER, Ordering::Relaxed);
        self.hot.follows_exits.store(0, Ordering::SeqCst);
        self.hot.timed.store(0, Ordering::SeqCst);
        self.begin_window(now);
    }

    /// Detaches the source. What lies between the last sample and now is dropped on both sides, drafts included.
    pub(crate) fn release_source(&self, shared: &Shared) {
        let Some(mut books) = self.books() else { return };
        let Some(attachment) = books.attachment.take() else { return };
        if !attachment.collector.is_dead() {
            if attachment.has_unpublished(&self.held.get()) {
                self.end_collection(Outcome::Lost, Reason::None, shared);
                books.losses = books.losses.saturating_add(1);
                books.resolved_before_loss = attachment.collector.last_resolved();
            }
            self.held.take();
            let now = shared.ticks.now();
            books.prepaid = self.prepaid(&attachment, None, now, shared);
            self.count_by_fields(&books.prepaid, now);
        }
        {
            let words = self.published.write();
            words.set(word::SOURCE_STATE, state::NONE);
            words.set(word::IN_FLIGHT_SINCE, NEVER);
        }
        self.set_in_flight(false, shared);
        drop(books);
        if attachment.times_steps {
            shared.timed_sources.fetch_sub(1, Ordering::SeqCst);
        }
        attachment.release();
        self.leave_place(shared);
    }

    fn set_in_flight(&self, in_flight: bool, shared: &Shared) {
        match (self.hot.in_flight.swap(in_flight, Ordering::Relaxed), in_flight) {
            (false, true) => shared.flights.fetch_add(1, Ordering::SeqCst),
            (true, false) => shared.flights.fetch_sub(1, Ordering::SeqCst),
            _ => return,
        };
    }

    /// Shows the collector's state to the callbacks and the readers.
    pub(crate) fn show(&self, attachment: &Attachment, shared: &Shared) {
        let collector = &attachment.collector;
        if !attachment.on_host {
            self.hot.due.store(collector.due(), Ordering::Relaxed);
            self.hot.poll_at.store(collector.poll_at(), Ordering::Relaxed);
        }
        let flight = collector.flight();
        self.set_in_flight(flight.is_some(), shared);
        if !collector.is_dead() {
            self.hot.opens_books.store(attachment.on_host || flight.is_some(), Ordering::Relaxed);
        }
        if flight.is_none() {
            self.hot.follows_exits.store(0, Ordering::SeqCst);
        }
        let state = match flight {
            _ if collector.is_dead() => state::DEAD,
            _ if attachment.on_host => state::ON_HOST,
            Some(_) => state::IN_FLIGHT,
            None if collector.is_backing_off() => state::BACKING_OFF,
            None => state::IDLE,
        };
        let words = self.published.write();
        words.set(word::SOURCE_STATE, state);
        words.set(word::IN_FLIGHT_SINCE, flight.map_or(NEVER, |flight| flight.started));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt;

    use crate::source::{CounterSource, Counters, Layout, Snapshot, SourceError};

    /// A source that has counted three accepted tokens more at each copy.
    struct Source(u64);

    impl CounterSource for Source {
        fn layout(&self) -> Layout {
            Layout::accepted()
        }

        fn start(&mut self) -> Result<(), SourceError> {
            self.0 = self.0.saturating_add(3);
            Ok(())
        }

        fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
            counters.accepted = self.0;
            Ok(Snapshot::Landed)
        }
    }

    #[test]
    fn a_copy_is_void_as_soon_as_its_step_is_entered_again() {
        let (clock, mock) = quanta::Clock::mock();
        let (layer, handle) = crate::builder().with_clock(clock).build().unwrap();
        let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let _attached = handle.attach("0", Source(0)).unwrap();
        mock.increment(Duration::from_secs(6));
        let step = crate::step_span!(num_spec_tokens = 4, num_drafts = 1);
        step.in_scope(|| ());
        let (_, slot) = handle.shared.steps.find(step.id().unwrap().into_u64()).unwrap();
        // Another thread has come so far with entering it when this one looks at the copy.
        let before = slot.enter();
        handle.poll("0");
        handle.shared.entered(slot, before);
        let totals = handle.totals();
        let collections: Vec<_> = totals.engines[0].collections.iter().filter(|outcome| outcome.2 > 0).collect();
        assert_eq!(totals.engines[0].accepted_tokens, 0, "{collections:?}");
        assert_eq!(collections.len(), 1, "{collections:?}");
        slot.exit();
    }
}
