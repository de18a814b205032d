//! An engine's totals at some instant, and what lies between two.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::marks::Part;
use crate::metrics::{GpuTotals, SpecDecodeMetrics, StepTotals, TimedSteps};
use crate::phases::Phase;
use crate::published::{Reading, gave, word};
use crate::quantity::{Amounts, Quantity};
use crate::ticks::Ticks;

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

impl Totals {
    pub(crate) fn minus(&self, base: &Self, ticks: &Ticks) -> SpecDecodeMetrics {
        let amounts = self.amounts.minus(&base.amounts);
        let given = |bit: u64| self.given & bit != 0;
        let count = |quantity: Quantity| given(1 << quantity as u64).then(|| amounts.get(quantity));
        let per_position = |bit: u64, now: &[u64], then: &[u64]| {
            let then = then.iter().copied().chain(std::iter::repeat(0));
            let difference = now.iter().zip(then).map(|(now, then)| now.saturating_sub(then));
            given(bit).then(|| difference.take(self.positions).collect())
        };
        let steps = self.steps.minus(&base.steps);
        let [plain_steps, drafted_steps] = steps.totals(self.given, ticks);
        let [draft_time, verify_time] = steps.phase_ticks.map(|phase| ticks.duration(phase));
        SpecDecodeMetrics {
            num_spec_tokens: (self.num_spec_tokens > 0).then_some(self.num_spec_tokens),
            drafts: count(Quantity::Drafts),
            draft_tokens: count(Quantity::DraftTokens),
            accepted_tokens: count(Quantity::Accepted),
            emitted_tokens: count(Quantity::Emitted),
            accepted_per_position: per_position(
                gave::ACCEPTED_PER_POSITION,
                &self.accepted_per_position,
                &base.accepted_per_position,
            ),
            draft_per_position: per_position(
                gave::DRAFT_PER_POSITION,
                &self.draft_per_position,
                &base.draft_per_position,
            ),
            drafted_steps,
            plain_steps,
            draft_time,
            verify_time,
            gpu: steps.gpu_totals(),
        }
    }
}

impl Engine {
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
