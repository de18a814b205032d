//! Whether speculation pays, from the time of steps with drafts and without. Pure.

use std::fmt;
use std::time::Duration;

use crate::acceptance::{Acceptance, Basis, constant_acceptance, mean_num_spec_tokens};
use crate::metrics::{SpecDecodeMetrics, StepTotals};

/// Whether speculation makes the engine faster, and which k would: see [`SpecDecodeMetrics::payoff`].
///
/// Steps without drafts are the baseline. Everything here was made from [`drafted_steps`](Self::drafted_steps) and
/// [`plain_steps`](Self::plain_steps), and is absent below [`MIN_STEPS`](Self::MIN_STEPS) of the kinds it needs, where
/// a count is missing, and where the counts contradict each other. Without a baseline a speed-up is unknown, not 1.
///
/// # The arithmetic
///
/// Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), take each draft token to be
/// accepted with the same probability α and get `(1 - α^(k+1)) / (1 - α)` tokens per draft (their equation 1), in the
/// time of `k * c + 1` plain steps if a draft token costs c of one (their theorem 3.8). Measured times and
/// acceptances need neither the constant α nor a verification as cheap as a plain step:
///
/// - tokens per draft, at any k: `E(k) = 1 + s_1 + ... + s_k`. The survival `s_j` is the product of the conditional
///   acceptances up to position j, counted as accepted / drafted at j. It is unbiased where k varies, unless k follows
///   the acceptance.
/// - time of a step, at any k: `T(k) = draft / k_in_use * k + (step - draft)`, from the mean time of a step with drafts
///   and of its draft phase. The rest of the step, verification above all, is taken to be the same at every k above 0.
///   (Its own time only has to fit into the step: it cancels out of verify + rest.)
/// - expected speed-up: `E(k) * plain step / T(k)`; exactly 1 at k = 0, which is a plain step.
///
/// With a constant α, and `step - draft` equal to a plain step, this is their formula. α is not the draft acceptance
/// rate: that one falls with k.
///
/// # What it can't know
///
/// - Verification that grows with k, as it does where the accelerator has no spare compute (large batches, mixtures of
///   experts): a k above the one in use then looks better than it is, a k below looks worse. What is measured at the
///   k in use holds; try the k that it proposes, and look again.
/// - Batches of unlike size: where an engine drafts only in small ones, its plain steps are the slow ones. See
///   [`batch_ratio`](Self::batch_ratio).
/// - The device's time: a step's time is the host's, which is not the device's where the engine runs ahead of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Payoff {
    drafted: StepTotals,
    plain: StepTotals,
    emitted_per_draft: Option<f64>,
    num_spec_tokens: Option<f64>,
    acceptance: Option<Acceptance>,
    /// The mean time of the draft phase in a step with drafts, in seconds.
    draft_phase: Option<f64>,
}

/// A value at some k, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value: finite, not negative.
    pub value: f64,
    /// What is known of the acceptance at this k.
    pub basis: Basis,
}

/// The k with the largest expected speed-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestNumSpecTokens {
    /// That k; the smallest one, where several are as good. 0: better not to speculate.
    pub num_spec_tokens: u64,
    /// Its expected speed-up over plain steps.
    pub speedup: Estimate,
    /// How much faster it is than the k in use: 0.05 is 5 %. Below 0 only where the k in use was not among the
    /// candidates.
    pub margin: f64,
}

impl SpecDecodeMetrics {
    /// Whether speculation pays, from these counts and times. Of a window: `later.since(&earlier).payoff()`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tracing_spec_decode::{SpecDecodeMetrics, StepTotals};
    ///
    /// let metrics = SpecDecodeMetrics {
    ///     drafts: Some(100),
    ///     draft_tokens: Some(400),
    ///     accepted_tokens: Some(200),
    ///     emitted_tokens: Some(300),
    ///     drafted_steps: StepTotals { steps: 100, time: Duration::from_secs(3), ..Default::default() },
    ///     plain_steps: StepTotals { steps: 100, time: Duration::from_secs(2), ..Default::default() },
    ///     draft_time: Duration::from_secs(1),
    ///     ..Default::default()
    /// };
    /// let payoff = metrics.payoff();
    /// // Three tokens in the time of one and a half plain steps.
    /// assert_eq!(payoff.speedup(), Some(2.0));
    /// let best = payoff.best_num_spec_tokens(8).unwrap();
    /// assert_eq!((best.num_spec_tokens, format!("{:.1} %", 100.0 * best.margin)), (4, "0.0 %".to_string()));
    /// ```
    #[must_use]
    pub fn payoff(&self) -> Payoff {
        let drafted = self.drafted_steps;
        let possible = self.max_emitted_tokens().is_none_or(|most| self.emitted_tokens <= Some(most));
        let drafts = self.drafts.filter(|&drafts| drafts >= Payoff::MIN_STEPS && possible);
        let phases = self.draft_time.checked_add(self.verify_time);
        let nested = phases.is_some_and(|phases| phases <= drafted.time);
        Payoff {
            drafted,
            plain: self.plain_steps,
            emitted_per_draft: quotient_of_counts(self.emitted_tokens, drafts),
            num_spec_tokens: mean_num_spec_tokens(self),
            acceptance: Acceptance::of(self),
            draft_phase: if nested { mean_time(&drafted, self.draft_time) } else { None },
        }
    }
}

impl Payoff {
    /// The least number of steps, of each kind that a value needs, and of drafts.
    pub const MIN_STEPS: u64 = 30;

    /// The largest k that is answered for.
    pub const MAX_NUM_SPEC_TOKENS: u64 = 1024;

    /// The steps with drafts that this was made from.
    #[must_use]
    pub fn drafted_steps(&self) -> u64 {
        self.drafted.steps
    }

    /// The steps without drafts that this was made from: the baseline.
    #[must_use]
    pub fn plain_steps(&self) -> u64 {
        self.plain.steps
    }

    /// The k in use: draft tokens per draft, a mean where k varies or drafts are ragged.
    #[must_use]
    pub fn num_spec_tokens(&self) -> Option<f64> {
        self.num_spec_tokens.filter(|_| self.drafted.steps >= Self::MIN_STEPS)
    }

    /// Tokens per second inside steps with drafts, over all sequences of their batches.
    #[must_use]
    pub fn tokens_per_second_with_drafts(&self) -> Option<f64> {
        tokens_per_second(&self.drafted)
    }

    /// Tokens per second inside steps without drafts.
    #[must_use]
    pub fn tokens_per_second_without_drafts(&self) -> Option<f64> {
        tokens_per_second(&self.plain)
    }

    /// Sequences in a step with drafts / in a step without. Far from 1, the speed-ups compare unlike batches.
    #[must_use]
    pub fn batch_ratio(&self) -> Option<f64> {
        quotient(sequences_per_step(&self.drafted)?, sequences_per_step(&self.plain)?)
    }

    /// What a step with drafts takes, in plain steps: so many tokens must a draft give to break even.
    #[must_use]
    pub fn step_cost(&self) -> Option<f64> {
        quotient(step_time(&self.drafted)?, step_time(&self.plain)?)
    }

    /// The measured speed-up of a drafted sequence: emitted tokens per draft, over the [`step_cost`](Self::step_cost).
    /// Above 1 speculation pays.
    #[must_use]
    pub fn speedup(&self) -> Option<f64> {
        quotient(self.emitted_per_draft?, self.step_cost()?)
    }

    /// The constant acceptance, per draft token that is reached, at which the k in use breaks even. 0 where a step with
    /// drafts takes no longer than a plain one. `None` also where no acceptance would do: the
    /// [`step_cost`](Self::step_cost) is then above k + 1.
    #[must_use]
    pub fn break_even_acceptance(&self) -> Option<f64> {
        constant_acceptance(self.step_cost()?, self.num_spec_tokens()?)
    }

    /// Expected tokens per draft at this k, the target model's own included.
    #[must_use]
    pub fn tokens_per_draft(&self, k: u64) -> Option<Estimate> {
        let acceptance = self.acceptance.as_ref().filter(|_| self.drafted.steps >= Self::MIN_STEPS)?;
        let answered = k <= Self::MAX_NUM_SPEC_TOKENS;
        answered.then(|| Estimate { value: acceptance.tokens_per_draft(k as f64), basis: acceptance.basis(k) })
    }

    /// Expected speed-up over plain steps at this k. Without `spec_decode_draft` spans it is unknown except at 0 and at
    /// the k in use.
    #[must_use]
    pub fn expected_speedup(&self, k: u64) -> Option<Estimate> {
        let Estimate { basis, .. } = self.tokens_per_draft(k)?;
        Some(Estimate { value: self.expected(k as f64)?, basis })
    }

    /// The best k from 0 to `largest`; `None` unless each of them is known.
    #[must_use]
    pub fn best_num_spec_tokens(&self, largest: u64) -> Option<BestNumSpecTokens> {
        let in_use = self.expected(self.num_spec_tokens()?)?;
        let (num_spec_tokens, speedup) = (1..=largest).try_fold((0, self.expected_speedup(0)?), |best, k| {
            let speedup = self.expected_speedup(k)?;
            Some(if speedup.value > best.1.value { (k, speedup) } else { best })
        })?;
        Some(BestNumSpecTokens { num_spec_tokens, speedup, margin: quotient(speedup.value, in_use)? - 1.0 })
    }

    /// The best k from 0 to twice the k in use: what the gauge `spec_decode.best_num_spec_tokens` shows.
    #[must_use]
    pub fn best(&self) -> Option<BestNumSpecTokens> {
        let largest = (2.0 * self.num_spec_tokens()?).ceil() as u64;
        self.best_num_spec_tokens(largest.min(Self::MAX_NUM_SPEC_TOKENS))
    }

    fn expected(&self, k: f64) -> Option<f64> {
        let (drafted, plain) = (step_time(&self.drafted)?, step_time(&self.plain)?);
        if k == 0.0 {
            return Some(1.0);
        }
        let in_use = self.num_spec_tokens()?;
        let step =
            if k == in_use { drafted } else { self.draft_phase.map(|draft| drafted - draft + draft / in_use * k)? };
        quotient(self.acceptance.as_ref()?.tokens_per_draft(k) * plain, step)
    }
}

/// A mean over steps of which there are enough, in seconds.
fn mean_time(steps: &StepTotals, time: Duration) -> Option<f64> {
    (steps.steps >= Payoff::MIN_STEPS && !time.is_zero()).then(|| time.as_secs_f64() / steps.steps as f64)
}

fn step_time(steps: &StepTotals) -> Option<f64> {
    mean_time(steps, steps.time)
}

fn tokens_per_second(steps: &StepTotals) -> Option<f64> {
    let enough = steps.steps >= Payoff::MIN_STEPS;
    quotient(steps.tokens.filter(|_| enough)? as f64, steps.time.as_secs_f64())
}

fn sequences_per_step(steps: &StepTotals) -> Option<f64> {
    let enough = steps.steps >= Payoff::MIN_STEPS;
    quotient_of_counts(steps.sequences, Some(steps.steps).filter(|_| enough))
}

fn quotient_of_counts(numerator: Option<u64>, denominator: Option<u64>) -> Option<f64> {
    quotient(numerator? as f64, denominator? as f64)
}

fn quotient(numerator: f64, denominator: f64) -> Option<f64> {
    Some(numerator / denominator).filter(|quotient| quotient.is_finite())
}

/// One log line.
impl fmt::Display for Payoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |f: &mut fmt::Formatter<'_>, name: &str, value: Option<f64>, digits: usize| match value {
            Some(value) => write!(f, "{name} {value:.digits$}, "),
            None => write!(f, "{name} unknown, "),
        };
        known(f, "measured speed-up", self.speedup(), 3)?;
        known(f, "mean k", self.num_spec_tokens(), 2)?;
        match self.best() {
            Some(BestNumSpecTokens { num_spec_tokens, speedup, margin }) => {
                let basis = match speedup.basis {
                    Basis::PerPosition => "",
                    Basis::Extrapolated => ", extrapolated",
                    Basis::ConstantAcceptance => ", at constant acceptance",
                };
                let margin = 100.0 * margin;
                write!(f, "best {num_spec_tokens} (expected speed-up {:.3}, {margin:+.1} %{basis}), ", speedup.value)?;
            }
            None => f.write_str("best unknown, ")?,
        }
        known(f, "break-even acceptance", self.break_even_acceptance(), 3)?;
        known(f, "tokens per second with drafts", self.tokens_per_second_with_drafts(), 2)?;
        known(f, "without", self.tokens_per_second_without_drafts(), 2)?;
        known(f, "batch ratio", self.batch_ratio(), 2)?;
        write!(f, "from {} steps with drafts and {} without", self.drafted.steps, self.plain.steps)
    }
}
