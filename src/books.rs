//! An engine's books: what a closed step adds, and when a window ends. Kept by the holder of the baton.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::anomaly::{Anomalies, Anomaly};
use crate::attachment::Attachment;
use crate::engine::Engine;
use crate::marks::Part;
use crate::metrics::{GpuTotals, StepTotals, TimedSteps};
use crate::open_steps::Slot;
use crate::phases::Phase;
use crate::published::{Reading, Writing, gave, word};
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::shared::Shared;
use crate::step::{Count, Fields, Step};
use crate::ticks::Ticks;
use crate::window;

/// The part of an engine's state that only the holder of its baton opens.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) attachment: Option<Attachment>,
    /// What `metrics` counts from.
    pub(crate) base: Totals,
    /// The totals at the last sample without a mark.
    pub(crate) sample: Totals,
}

/// An engine's totals at some instant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) amounts: Amounts,
    /// Which of them somebody has given: see [`gave`].
    pub(crate) given: u64,
    pub(crate) num_spec_tokens: u64,
    pub(crate) steps: Steps,
    pub(crate) positions: usize,
    pub(crate) accepted_per_position: Box<[u64]>,
    pub(crate) draft_per_position: Box<[u64]>,
}

impl Totals {
    /// As a reader sees them. Allocates.
    pub(crate) fn of(reading: &Reading) -> Self {
        let mut totals = Self {
            accepted_per_position: reading.accepted_per_position.clone(),
            draft_per_position: reading.draft_per_position.clone(),
            ..Self::default()
        };
        totals.read(|word| reading.words[word]);
        totals
    }

    /// Takes all but the positions' totals from published words, which `word` gives.
    fn read(&mut self, word: impl Fn(usize) -> u64) {
        self.amounts = Amounts::from_fn(|quantity| word(word::TOTALS.wrapping_add(quantity as usize)));
        self.given = word(word::GAVE);
        self.num_spec_tokens = word(word::NUM_SPEC_TOKENS);
        self.positions = usize::try_from(word(word::POSITIONS)).unwrap_or(usize::MAX);
        self.steps = Steps::read(word);
    }
}

/// Steps and what they took, each without drafts and with; ticks of phases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Steps {
    pub(crate) closed: [u64; 2],
    pub(crate) ticks: [u64; 2],
    pub(crate) sequences: [u64; 2],
    pub(crate) tokens: [u64; 2],
    pub(crate) phase_ticks: [u64; Phase::COUNT],
    pub(crate) gpu_nanos: [u64; Part::COUNT],
    pub(crate) gpu_steps: [u64; Part::COUNT],
}

impl Steps {
    /// Out of published words, which `word` gives.
    pub(crate) fn read(word: impl Fn(usize) -> u64) -> Self {
        let pair = |first: usize| [word(first), word(first.wrapping_add(1))];
        let parts = |first: usize| Part::ALL.map(|part| word(first.wrapping_add(part as usize)));
        Self {
            closed: pair(word::STEPS),
            ticks: pair(word::STEP_TICKS),
            sequences: pair(word::SEQUENCES),
            tokens: pair(word::TOKENS),
            phase_ticks: pair(word::PHASE_TICKS),
            gpu_nanos: parts(word::GPU_NANOS),
            gpu_steps: parts(word::GPU_STEPS),
        }
    }

    pub(crate) fn minus(&self, base: &Self) -> Self {
        fn minus<const N: usize>(mut now: [u64; N], then: [u64; N]) -> [u64; N] {
            now.iter_mut().zip(then).for_each(|(now, then)| *now = now.saturating_sub(then));
            now
        }
        Self {
            closed: minus(self.closed, base.closed),
            ticks: minus(self.ticks, base.ticks),
            sequences: minus(self.sequences, base.sequences),
            tokens: minus(self.tokens, base.tokens),
            phase_ticks: minus(self.phase_ticks, base.phase_ticks),
            gpu_nanos: minus(self.gpu_nanos, base.gpu_nanos),
            gpu_steps: minus(self.gpu_steps, base.gpu_steps),
        }
    }

    /// For the readers: what was timed on the device.
    pub(crate) fn gpu_totals(&self) -> GpuTotals {
        let [step, draft, verify] = Part::ALL.map(|part| TimedSteps {
            steps: self.gpu_steps[part as usize],
            time: Duration::from_nanos(self.gpu_nanos[part as usize]),
        });
        GpuTotals { step, draft, verify }
    }

    /// For the readers: steps without drafts, then those with.
    pub(crate) fn totals(&self, given: u64, ticks: &Ticks) -> [StepTotals; 2] {
        let given = |bit: u64, amount: u64| (given & bit != 0).then_some(amount);
        [0, 1].map(|kind| StepTotals {
            steps: self.closed[kind],
            time: ticks.duration(self.ticks[kind]),
            sequences: given(gave::SEQUENCES, self.sequences[kind]),
            tokens: given(gave::TOKENS, self.tokens[kind]),
        })
    }
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
    /// Accounts for a closed step. Inlined where a thread closes its own: see [`Self::account_left`] for those of others.
    #[inline(always)]
    pub(crate) fn account(&self, slot: &Slot, shared: &Shared) {
        let from_source = self.hot.quantities_of_source();
        if from_source.is_empty() {
            self.account_by_fields(slot, shared);
        } else {
            self.account_with_source(slot, from_source, shared);
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
        words.set(word::WINDOW_GAUGES, window::gauges(&sums, doubtful, num_spec_tokens));
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
        self.window.start.store(now, Ordering::Relaxed);
        self.window.doubtful.store(0, Ordering::Relaxed);
        let amounts = self.published_amounts();
        for quantity in Quantity::ALL {
            self.window.base[quantity as usize].store(amounts.get(quantity), Ordering::Relaxed);
        }
    }

    /// The totals as published, for whoever holds the baton. Allocates.
    pub(crate) fn totals(&self) -> Totals {
        let (accepted, draft) = self.published.positions();
        let load = |words: &[AtomicU64]| words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let mut totals =
            Totals { accepted_per_position: load(accepted), draft_per_position: load(draft), ..Totals::default() };
        self.read_totals(&mut totals);
        totals
    }

    /// Brings totals up to date with what is published, in place.
    pub(crate) fn read_totals(&self, totals: &mut Totals) {
        totals.read(|word| self.published.get(word));
        let (accepted, draft) = self.published.positions();
        let copy = |to: &mut [u64], from: &[AtomicU64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        };
        copy(&mut totals.accepted_per_position, accepted);
        copy(&mut totals.draft_per_position, draft);
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
