//! A sample: the steps that belong to it, and what is published of it.

use crate::anomaly::Anomaly;
use crate::attachment::Attachment;
use crate::books::{Books, add_anomaly};
use crate::delta::Delta;
use crate::engine::Engine;
use crate::marks::GpuTimes;
use crate::outcome::Outcome;
use crate::published::{Writing, word};
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::shared::Shared;
use crate::slot::Slot;
use crate::source::{Failed, Snapshot, SourceError};
use crate::step::Step;
use crate::tally::Tally;
use crate::ticks::NEVER;
use crate::window::End;

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

impl Engine {
    /// While a copy is in flight a step may belong to it; and counters on the host are read at each close.
    #[inline(never)]
    pub(crate) fn tally_in_books(&self, step: &Step, slot: &Slot, shared: &Shared) {
        let Some(mut books) = self.books() else { return };
        if self.hot.is_prepaid() {
            return self.count_prepaid(step, slot, &mut books, shared);
        }
        let Some(attachment) = books.attachment.as_mut() else { return };
        let belongs = attachment.sample.follows_exits
            && slot.visits().ever_entered()
            && attachment.collector.flight().is_some_and(|flight| slot.left_at().before(flight.generation));
        if belongs {
            let taken = attachment.closes_taken(slot);
            attachment.sample.tally.add(step, &taken);
        } else if slot.is_taken() {
            let mut held = self.held.get();
            held.add(step, &attachment.closes_taken(slot));
            self.held.set(&held);
        } else if step.drafted {
            self.held.add(step);
        } else {
            self.held.see_num_spec_tokens(step.num_spec_tokens);
        }
        if attachment.on_host {
            self.read_host(&mut books, shared, Some(slot), false);
        }
    }

    /// Reads a source whose counters are on the host, and publishes what they say.
    ///
    /// `closing` is the step that is being accounted for.
    pub(crate) fn read_host(
        &self,
        books: &mut Books,
        shared: &Shared,
        closing: Option<&Slot>,
        by_flush: bool,
    ) -> Option<SourceError> {
        let attachment = books.attachment.as_mut()?;
        let now = shared.ticks.now();
        match attachment.poll() {
            Ok(Snapshot::Landed) => {
                let is_due = by_flush || self.window_is_due(now, shared);
                if is_due || !attachment.is_unchanged() || self.held.has_drafts() {
                    let counts_drafts = attachment.counts_drafts();
                    let is_alone = (is_due || !counts_drafts) && !self.is_under_way(closing, shared);
                    attachment.sample = Sample {
                        tally: self.held.take(),
                        overlaps: !counts_drafts && !is_alone,
                        settles: is_due && is_alone,
                        by_flush,
                        ..Sample::default()
                    };
                    self.publish_sample(books, now, shared);
                }
                None
            }
            Ok(Snapshot::Pending) => Some(SourceError::Failed(Failed::Timeout)),
            Err(error @ SourceError::Dead(_)) => {
                self.end_collection(Outcome::Lost, error.into(), shared);
                self.bury_source(books, closing, now, shared);
                Some(error)
            }
            Err(error) => {
                // A flush asks again and again.
                if !by_flush {
                    let outcome = if let SourceError::Busy(_) = error { Outcome::Skipped } else { Outcome::Failed };
                    self.end_collection(outcome, error.into(), shared);
                }
                Some(error)
            }
        }
    }

    /// Whether a step other than `closing` has been entered and is not accounted for.
    pub(crate) fn is_under_way(&self, closing: Option<&Slot>, shared: &Shared) -> bool {
        self.is_begun_by(NEVER, closing, shared)
    }

    /// Publishes a sample that has landed: each quantity from the source if it counts it, else from the fields.
    pub(crate) fn publish_sample(&self, books: &mut Books, now: u64, shared: &Shared) {
        let Books { attachment: Some(attachment), sample: totals, .. } = books else { return };
        let Sample { tally, overlaps, has_taken, settles, by_flush, gpu_times, .. } =
            std::mem::take(&mut attachment.sample);
        let own = attachment.layout().quantities();
        let counts_drafts = attachment.counts_drafts();
        let Delta { amounts: counted, accepted_per_position, draft_per_position, contradictory, restarted } =
            attachment.take_delta();
        let words = self.published.write();

        if let Some(times) = gpu_times {
            times.publish(&words);
        }
        if words.add_positions(accepted_per_position, draft_per_position) {
            add_anomaly(&words, Anomaly::PositionOverBound, 1);
        }
        let [accepted_exceeds_draft, emitted_exceeds_possible] = contradictory;
        add_anomaly(&words, Anomaly::AcceptedExceedsDraft, accepted_exceeds_draft);
        add_anomaly(&words, Anomaly::EmittedExceedsPossible, emitted_exceeds_possible);
        words.raise(word::POSITIONS, accepted_per_position.len().max(draft_per_position.len()) as u64);

        let chosen =
            Amounts::from_fn(|quantity| if own.has(quantity) { &counted } else { &tally.amounts }.get(quantity));
        attachment.owed.add(&chosen);
        let due = if overlaps || has_taken {
            self.at_most_possible(&attachment.owed, &totals.amounts)
        } else {
            attachment.owed
        };
        attachment.owed = attachment.owed.minus(&due);
        let given = if tally.drafted { Quantities::ALL.without(tally.missing) } else { Quantities::NONE };
        self.add_amounts(&words, &due, own.with(given));
        if tally.num_spec_tokens > 0 {
            words.set(word::NUM_SPEC_TOKENS, tally.num_spec_tokens);
        }

        self.window.doubt(tally.missing.with(tally.contradicted).without(own));
        attachment.by_fields.merge(&tally);
        attachment.by_source.add(&chosen);
        if restarted {
            add_anomaly(&words, Anomaly::CounterRestarted, 1);
            // What was lost with the reset is in the drafts all the same, where the host counts them.
            self.window.doubt(if counts_drafts { Quantities::NONE } else { own });
            attachment.by_fields.missing = Quantities::ALL;
        }
        if overlaps {
            add_anomaly(&words, Anomaly::Overlap, 1);
            return;
        }
        if settles && !has_taken {
            self.compare(attachment, own, &words);
        }
        words.set(word::LAST_SAMPLE, now);
        self.turn_window(&words, now, shared, if by_flush { End::Early } else { End::OnTime });
        drop(words);
        if attachment.goes_by_samples() {
            self.read_totals(totals);
        }
    }

    /// What of the amounts can be published without showing more accepted or emitted than the drafts allow `since` the
    /// last sample without a mark: the source can be ahead of drafts that the host counts. The rest is due with a later
    /// sample.
    fn at_most_possible(&self, owed: &Amounts, since: &Amounts) -> Amounts {
        let mut after = self.published_amounts().minus(since);
        after.add(owed);
        let excess = |quantity: Quantity, most: u64| after.get(quantity).saturating_sub(most);
        let held_back = Amounts::new(
            0,
            0,
            excess(Quantity::Accepted, after.get(Quantity::DraftTokens)),
            excess(Quantity::Emitted, after.max_emitted()),
        );
        owed.minus(&held_back)
    }

    /// Compares what the source and the fields say of the steps since the last sample without a mark.
    fn compare(&self, attachment: &mut Attachment, own: Quantities, words: &Writing<'_>) {
        let fields = std::mem::take(&mut attachment.by_fields);
        let chosen = std::mem::take(&mut attachment.by_source);
        if fields.missing == Quantities::ALL {
            return;
        }
        let comparable = own.without(fields.missing).without(fields.contradicted);
        let differs = |quantity: &Quantity| fields.amounts.get(*quantity) != chosen.get(*quantity);
        if fields.drafted && Quantity::ALL.iter().filter(|&&quantity| comparable.has(quantity)).any(differs) {
            add_anomaly(words, Anomaly::SourceDisagrees, 1);
        }
        let known = own.with(Quantities::ALL.without(fields.missing));
        let tokens_known = known.has(Quantity::DraftTokens);
        if tokens_known && chosen.get(Quantity::Accepted) > chosen.get(Quantity::DraftTokens) {
            add_anomaly(words, Anomaly::AcceptedExceedsDraft, 1);
            self.window.doubt(Quantities::of(Quantity::Accepted));
        }
        if tokens_known && known.has(Quantity::Drafts) && chosen.get(Quantity::Emitted) > chosen.max_emitted() {
            add_anomaly(words, Anomaly::EmittedExceedsPossible, 1);
            self.window.doubt(Quantities::of(Quantity::Emitted));
        }
    }
}
