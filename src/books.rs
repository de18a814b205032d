//! An engine's books: what a closed step adds. Kept by the holder of the baton.

use std::sync::atomic::Ordering;

use crate::anomaly::{Anomalies, Anomaly};
use crate::attachment::Attachment;
use crate::engine::Engine;
use crate::engine_totals::Totals;
use crate::phases::Phase;
use crate::published::{Writing, gave, word};
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::shared::Shared;
use crate::slot::Slot;
use crate::step::{Count, Fields, Step};
use crate::window::End;

/// The part of an engine's state that only the holder of its baton opens.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) attachment: Option<Attachment>,
    /// What `metrics` counts from.
    pub(crate) base: Totals,
    /// The totals at the last sample without a mark.
    pub(crate) sample: Totals,
    pub(crate) prepaid: Prepaid,
    /// How often a source was detached with something that was in no sample.
    pub(crate) losses: u64,
    /// The generation of the last copy that was published before the last loss.
    pub(crate) resolved_before_loss: u64,
}

/// What was published, while there was a source, of steps that have not closed and are to be counted by their fields.
#[derive(Debug, Default)]
pub(crate) struct Prepaid {
    pub(crate) amounts: Amounts,
    /// How much it was can't be told.
    pub(crate) is_unknown: bool,
    /// Those steps began until then.
    pub(crate) until: u64,
    /// A rebase has put it behind itself, so that those steps count whole after it.
    pub(crate) is_before_base: bool,
}

impl Prepaid {
    pub(crate) fn is_none(&self) -> bool {
        !self.is_unknown && self.amounts == Amounts::default()
    }

    /// How much of a step that closes is still to be counted; `None` if that can't be told.
    fn settle(&mut self, step: &Step, slot: &Slot) -> Option<Amounts> {
        if !slot.has_begun_by(self.until) {
            return Some(step.amounts);
        }
        let due = step.amounts.minus(&self.amounts);
        self.amounts = self.amounts.minus(&step.amounts);
        (!self.is_unknown).then_some(due)
    }
}

impl Books {
    /// What `metrics` counts to: the totals as published, less what was published before it was due, or those of the last
    /// sample without a mark. Allocates.
    pub(crate) fn totals(&self, engine: &Engine) -> Totals {
        if self.attachment.as_ref().is_some_and(Attachment::goes_by_samples) {
            return self.sample.clone();
        }
        let mut totals = engine.totals();
        totals.amounts = totals.amounts.minus(&self.prepaid.amounts);
        totals
    }

    /// The steps that something was prepaid of are accounted for.
    fn forget_prepaid(&mut self) {
        let Prepaid { amounts, is_before_base, .. } = std::mem::take(&mut self.prepaid);
        if is_before_base {
            self.base.amounts.add(&amounts);
        }
    }
}

impl Engine {
    /// Accounts for a closed step. Inlined where a thread closes its own: see [`Self::account_left`] for those of others.
    #[inline(always)]
    pub(crate) fn account(&self, slot: &Slot, shared: &Shared) {
        match self.hot.from_source.load(Ordering::Relaxed) {
            0 => self.account_by_fields(slot, shared),
            from_source => self.account_with_source(slot, Quantities::from_bits(from_source), shared),
        }
    }

    #[inline(always)]
    fn account_by_fields(&self, slot: &Slot, shared: &Shared) {
        let fields = slot.fields();
        let now = shared.ticks.now();
        let words = self.published.write();
        let k = fields.num_spec_tokens();
        if k > 0 && k != self.published.get(word::NUM_SPEC_TOKENS) {
            change_num_spec_tokens(&words, k);
        }
        let has_drafts = fields.has_drafts();
        count_step(&words, slot, &fields, has_drafts);
        if has_drafts {
            let step = self.read_drafts(&fields, Quantities::NONE);
            // Without a source a step counts whole or not at all.
            if step.is_whole() {
                for quantity in Quantity::ALL {
                    words.count(word::TOTALS.wrapping_add(quantity as usize), step.amounts.get(quantity));
                }
                words.set_bits(word::GAVE, step.known.bits().into());
                self.window.doubt(Quantities::ALL.without(step.known));
            }
            if !step.anomalies.is_empty() {
                add_anomalies(&words, step.anomalies);
            }
        }
        if fields.has_rarities() {
            add_rarities(&words, slot);
        }
        self.turn_window(&words, now, shared, End::OnTime);
    }

    /// Counts a step by its fields, less what was published before.
    #[cold]
    pub(crate) fn count_prepaid(&self, step: &Step, slot: &Slot, books: &mut Books, shared: &Shared) {
        let now = shared.ticks.now();
        let words = self.published.write();
        if step.num_spec_tokens > 0 {
            change_num_spec_tokens(&words, step.num_spec_tokens);
        }
        if step.is_whole() {
            if let Some(due) = books.prepaid.settle(step, slot) {
                self.add_amounts(&words, &due, step.known);
                // The rest was published before this window.
                self.window.doubt(due.differing(&step.amounts).with(Quantities::ALL.without(step.known)));
            } else {
                add_anomaly(&words, Anomaly::Incomplete, 1);
            }
        }
        if !self.is_begun_by(books.prepaid.until, Some(slot), shared) {
            books.forget_prepaid();
        }
        self.hot.count_by_fields(!books.prepaid.is_none());
        self.turn_window(&words, now, shared, End::OnTime);
    }

    #[inline(always)]
    fn read_drafts(&self, fields: &Fields, from_source: Quantities) -> Step {
        Step::of_drafts(fields, from_source, self.has_given_emitted())
    }

    #[inline]
    fn has_given_emitted(&self) -> bool {
        self.published.get(word::GAVE) & 1 << Quantity::Emitted as u64 != 0
    }

    /// Accounts for a step that another thread has left.
    #[cold]
    pub(crate) fn account_left(&self, slot: &Slot, shared: &Shared) {
        self.account(slot, shared);
        slot.free();
    }

    /// A step of an engine with a source waits for the next sample, but for what no source counts.
    #[inline(always)]
    fn account_with_source(&self, slot: &Slot, from_source: Quantities, shared: &Shared) {
        let fields = slot.fields();
        let words = self.published.write();
        words.raise(word::POSITIONS, fields.num_spec_tokens());
        if fields.has_rarities() {
            add_rarities(&words, slot);
        }
        let has_drafts = fields.has_drafts();
        count_step(&words, slot, &fields, has_drafts);
        if self.hot.opens_books.load(Ordering::Relaxed) || slot.is_taken() {
            let step = Step::of(&fields, from_source, self.has_given_emitted());
            if !step.anomalies.is_empty() {
                add_anomalies(&words, step.anomalies);
            }
            drop(words);
            self.tally_in_books(&step, slot, shared);
        } else if has_drafts {
            let step = self.read_drafts(&fields, from_source);
            if !step.anomalies.is_empty() {
                add_anomalies(&words, step.anomalies);
            }
            self.held.add(&step);
        } else {
            self.held.see_num_spec_tokens(fields.num_spec_tokens());
        }
    }

    #[inline]
    pub(crate) fn add_amounts(&self, words: &Writing<'_>, amounts: &Amounts, known: Quantities) {
        for quantity in Quantity::ALL {
            words.add(word::TOTALS.wrapping_add(quantity as usize), amounts.get(quantity));
        }
        words.set_bits(word::GAVE, known.bits().into());
    }

    /// The totals of the four quantities, as published.
    pub(crate) fn published_amounts(&self) -> Amounts {
        Amounts::from_fn(|quantity| self.published.get(word::TOTALS.wrapping_add(quantity as usize)))
    }
}

/// Counts a step and what it took, which no source knows.
#[inline(always)]
fn count_step(words: &Writing<'_>, slot: &Slot, fields: &Fields, has_drafts: bool) {
    let kind = usize::from(has_drafts);
    words.count(word::STEPS.wrapping_add(kind), 1);
    words.count(word::STEP_TICKS.wrapping_add(kind), slot.took());
    if fields.has_batch() {
        count_batch(words, slot, kind);
    }
    let phases = slot.phases();
    if phases != [0; Phase::COUNT] && has_drafts {
        count_phases(words, phases);
    }
}

#[inline(never)]
fn count_batch(words: &Writing<'_>, slot: &Slot, kind: usize) {
    for (count, total, bit) in
        [(Count::NumSequences, word::SEQUENCES, gave::SEQUENCES), (Count::NumTokens, word::TOKENS, gave::TOKENS)]
    {
        if let Some(amount) = slot.given(count) {
            words.count(total.wrapping_add(kind), amount);
            words.set_bits(word::GAVE, bit);
        }
    }
}

#[inline(never)]
fn count_phases(words: &Writing<'_>, phases: [u64; Phase::COUNT]) {
    for ((ticks, total), bit) in phases.into_iter().zip(word::PHASE_TICKS..).zip([gave::DRAFT_TIME, gave::VERIFY_TIME])
    {
        if ticks > 0 {
            words.count(total, ticks);
            words.set_bits(word::GAVE, bit);
        }
    }
}

#[cold]
fn change_num_spec_tokens(words: &Writing<'_>, k: u64) {
    words.set(word::NUM_SPEC_TOKENS, k);
    words.raise(word::POSITIONS, k);
}

/// Counts discarded tokens and misused values, which most steps have none of.
#[cold]
fn add_rarities(words: &Writing<'_>, slot: &Slot) {
    if let Some(discarded) = slot.given(Count::NumDiscardedDraftTokens) {
        words.add(word::DISCARDED, discarded);
        words.set_bits(word::GAVE, gave::DISCARDED);
    }
    let misuses = slot.misuses();
    add_anomaly(words, Anomaly::InvalidValue, misuses.invalid.into());
    add_anomaly(words, Anomaly::LateIdentity, misuses.late_identity.into());
}

#[cold]
fn add_anomalies(words: &Writing<'_>, anomalies: Anomalies) {
    for anomaly in anomalies.iter() {
        add_anomaly(words, anomaly, 1);
    }
}

pub(crate) fn add_anomaly(words: &Writing<'_>, anomaly: Anomaly, times: u64) {
    if times > 0 {
        words.add(word::ANOMALIES.wrapping_add(anomaly as usize), times);
    }
}
