//! The arithmetic: counts of drafts and tokens, and the ratios that follow from them. Pure.

use std::fmt;
use std::time::Duration;

/// An engine's totals, and what follows from them.
///
/// The counts are the contract: every ratio is a quotient of sums, so it is right for a k that changes, for ragged
/// drafts, and over several engines ([`merged`](Self::merged)). A count that nobody gave is `None`. A ratio that can't
/// be known, because a count is missing, a denominator is zero, or the counts contradict each other, is NaN, as it is
/// in vLLM V0's record; the exported gauges are absent instead.
///
/// ```
/// use tracing_spec_decode::SpecDecodeMetrics;
///
/// // vLLM issue 9539: k = 3, 4437 drafts.
/// let metrics = SpecDecodeMetrics {
///     num_spec_tokens: Some(3),
///     drafts: Some(4437),
///     draft_tokens: Some(13311),
///     accepted_tokens: Some(8547),
///     emitted_tokens: Some(10616),
///     ..SpecDecodeMetrics::default()
/// };
/// assert_eq!(format!("{:.3}", metrics.draft_acceptance_rate()), "0.642");
/// assert_eq!(format!("{:.3}", metrics.system_efficiency()), "0.598");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecDecodeMetrics {
    /// k, the draft tokens per sequence: the last value above 0 that a step gave.
    pub num_spec_tokens: Option<u64>,
    /// Sequences whose drafts were verified, one per sequence and step.
    pub drafts: Option<u64>,
    /// Tokens submitted to verification.
    pub draft_tokens: Option<u64>,
    /// The accepted prefix of each draft, summed. The target model's own token is not in it, nor is what a verifier
    /// would have accepted behind the first rejection.
    pub accepted_tokens: Option<u64>,
    /// Tokens emitted by the drafted sequences, the target model's own included.
    pub emitted_tokens: Option<u64>,
    /// Accepted tokens by draft position, from a source that counts them.
    pub accepted_per_position: Option<Vec<u64>>,
    /// Draft tokens by draft position, from a source that counts them.
    pub draft_per_position: Option<Vec<u64>>,
    /// The steps that had drafts.
    pub drafted_steps: StepTotals,
    /// The steps that had none: the baseline.
    pub plain_steps: StepTotals,
    /// Time inside the `spec_decode_draft` spans of steps with drafts, summed.
    pub draft_time: Duration,
    /// Time inside the `spec_decode_verify` spans of steps with drafts, summed.
    pub verify_time: Duration,
    /// Time on the device, of sampled steps, from a source that times them.
    pub gpu: GpuTotals,
}

/// What sampled steps and their phases took on the device, in the engine's stream.
///
/// In an engine that runs ahead of its device a span's time is that of submitting the work; this is the time of doing
/// it. Only some of the steps that are sampled are timed, so the means are what compares with the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuTotals {
    /// Whole steps.
    pub step: TimedSteps,
    /// Their `spec_decode_draft` spans.
    pub draft: TimedSteps,
    /// Their `spec_decode_verify` spans.
    pub verify: TimedSteps,
}

/// How many steps were timed, and what they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedSteps {
    /// Steps that were timed.
    pub steps: u64,
    /// Their time on the device, summed.
    pub time: Duration,
}

impl TimedSteps {
    /// The mean time; `None` where no step was timed.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.time.as_nanos().checked_div(self.steps.into())?;
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    fn since(&self, earlier: &Self) -> Self {
        Self { steps: self.steps.saturating_sub(earlier.steps), time: self.time.saturating_sub(earlier.time) }
    }

    fn merged(&self, other: &Self) -> Self {
        Self { steps: self.steps.saturating_add(other.steps), time: self.time.saturating_add(other.time) }
    }
}

impl GpuTotals {
    fn with(&self, other: &Self, both: impl Fn(&TimedSteps, &TimedSteps) -> TimedSteps) -> Self {
        Self {
            step: both(&self.step, &other.step),
            draft: both(&self.draft, &other.draft),
            verify: both(&self.verify, &other.verify),
        }
    }
}

/// Steps of one kind, as of their closes, and what they took and gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTotals {
    /// Steps closed.
    pub steps: u64,
    /// From each step's first enter to its last exit, summed: the host's time, which is not the device's where the
    /// engine runs ahead of it.
    pub time: Duration,
    /// All sequences of the steps' batches, with drafts or without; `None` where no step gave them. Give them in every
    /// step or in none: what is made of them per step or per second is too low otherwise.
    pub sequences: Option<u64>,
    /// All tokens emitted for them; likewise.
    pub tokens: Option<u64>,
}

impl StepTotals {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            steps: self.steps.saturating_sub(earlier.steps),
            time: self.time.saturating_sub(earlier.time),
            sequences: difference(self.sequences, earlier.sequences),
            tokens: difference(self.tokens, earlier.tokens),
        }
    }

    /// Of two engines. One that has no such steps takes no count from the other.
    fn merged(&self, other: &Self) -> Self {
        let count = |one: Option<u64>, other_count: Option<u64>| match (one, other_count) {
            (None, count) if self.steps == 0 => count,
            (count, None) if other.steps == 0 => count,
            (one, other) => Some(one?.saturating_add(other?)),
        };
        Self {
            steps: self.steps.saturating_add(other.steps),
            time: self.time.saturating_add(other.time),
            sequences: count(self.sequences, other.sequences),
            tokens: count(self.tokens, other.tokens),
        }
    }
}

impl SpecDecodeMetrics {
    /// Accepted tokens / draft tokens, in `0..=1`.
    ///
    /// With the accepted prefix it falls as k grows, since later positions are reached less often. (vLLM V0 divides
    /// the raw mask instead, which counts accepts behind the first rejection.)
    #[must_use]
    pub fn draft_acceptance_rate(&self) -> f64 {
        fraction(self.accepted_tokens, self.draft_tokens)
    }

    /// Emitted tokens / (draft tokens + drafts), in `0..=1`: how much of what the drafts could have given was emitted.
    ///
    /// For a constant k the denominator is vLLM V0's `draft_tokens / k * (k + 1)`.
    #[must_use]
    pub fn system_efficiency(&self) -> f64 {
        fraction(self.emitted_tokens, self.max_emitted_tokens())
    }

    /// 1 + accepted tokens / drafts: the mean number of tokens that a verified sequence gains in a step, in `1..=k + 1`.
    #[must_use]
    pub fn mean_acceptance_length(&self) -> f64 {
        let contradictory = self.draft_tokens.is_some_and(|tokens| self.accepted_tokens > Some(tokens));
        if contradictory { f64::NAN } else { 1.0 + quotient(self.accepted_tokens, self.drafts) }
    }

    /// Draft tokens + drafts: every draft accepted whole, plus the target model's own token for each.
    #[must_use]
    pub fn max_emitted_tokens(&self) -> Option<u64> {
        Some(self.draft_tokens?.saturating_add(self.drafts?))
    }

    /// Accepted / drafted at each position. Unlike accepted / drafts this is not too low where k varies.
    #[must_use]
    pub fn acceptance_rate_per_position(&self) -> Vec<f64> {
        let draft = self.draft_per_position.as_deref().unwrap_or_default();
        let accepted = self.accepted_per_position.as_deref().unwrap_or_default().iter().enumerate();
        accepted.map(|(position, &accepted)| fraction(Some(accepted), draft.get(position).copied())).collect()
    }

    /// Accepted at each position / accepted at the position before (drafts, for the first): does not depend on k.
    #[must_use]
    pub fn conditional_acceptance_rate_per_position(&self) -> Vec<f64> {
        let mut before = self.drafts.or_else(|| self.draft_per_position.as_ref()?.first().copied());
        let accepted = self.accepted_per_position.as_deref().unwrap_or_default();
        accepted.iter().map(|&accepted| fraction(Some(accepted), before.replace(accepted))).collect()
    }

    /// What was counted after `earlier`, a value of the same engine. Counts never fall, so neither does the result.
    ///
    /// ```
    /// # use tracing_spec_decode::SpecDecodeMetrics;
    /// let earlier = SpecDecodeMetrics { draft_tokens: Some(200), ..Default::default() };
    /// let later = SpecDecodeMetrics { draft_tokens: Some(300), ..Default::default() };
    /// assert_eq!(later.since(&earlier).draft_tokens, Some(100));
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let per_position = |now: &Option<Vec<u64>>, then: &Option<Vec<u64>>| {
            let then = then.as_deref().unwrap_or_default();
            let difference = |(position, now): (usize, &u64)| now.saturating_sub(at(then, position));
            Some(now.as_ref()?.iter().enumerate().map(difference).collect())
        };
        Self {
            num_spec_tokens: self.num_spec_tokens,
            drafts: difference(self.drafts, earlier.drafts),
            draft_tokens: difference(self.draft_tokens, earlier.draft_tokens),
            accepted_tokens: difference(self.accepted_tokens, earlier.accepted_tokens),
            emitted_tokens: difference(self.emitted_tokens, earlier.emitted_tokens),
            accepted_per_position: per_position(&self.accepted_per_position, &earlier.accepted_per_position),
            draft_per_position: per_position(&self.draft_per_position, &earlier.draft_per_position),
            drafted_steps: self.drafted_steps.since(&earlier.drafted_steps),
            plain_steps: self.plain_steps.since(&earlier.plain_steps),
            draft_time: self.draft_time.saturating_sub(earlier.draft_time),
            verify_time: self.verify_time.saturating_sub(earlier.verify_time),
            gpu: self.gpu.with(&earlier.gpu, TimedSteps::since),
        }
    }

    /// Both together, as of several engines. A count that only one of them has is unknown for both; k is the larger.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let count = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        let per_position = |one: &Option<Vec<u64>>, other: &Option<Vec<u64>>| {
            let (one, other) = (one.as_ref()?, other.as_ref()?);
            let positions = 0..one.len().max(other.len());
            Some(positions.map(|position| at(one, position).saturating_add(at(other, position))).collect())
        };
        Self {
            num_spec_tokens: self.num_spec_tokens.max(other.num_spec_tokens),
            drafts: count(self.drafts, other.drafts),
            draft_tokens: count(self.draft_tokens, other.draft_tokens),
            accepted_tokens: count(self.accepted_tokens, other.accepted_tokens),
            emitted_tokens: count(self.emitted_tokens, other.emitted_tokens),
            accepted_per_position: per_position(&self.accepted_per_position, &other.accepted_per_position),
            draft_per_position: per_position(&self.draft_per_position, &other.draft_per_position),
            drafted_steps: self.drafted_steps.merged(&other.drafted_steps),
            plain_steps: self.plain_steps.merged(&other.plain_steps),
            draft_time: self.draft_time.saturating_add(other.draft_time),
            verify_time: self.verify_time.saturating_add(other.verify_time),
            gpu: self.gpu.with(&other.gpu, TimedSteps::merged),
        }
    }
}

fn difference(now: Option<u64>, then: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(then.unwrap_or_default()))
}

fn at(counts: &[u64], position: usize) -> u64 {
    counts.get(position).copied().unwrap_or_default()
}

fn quotient(numerator: Option<u64>, denominator: Option<u64>) -> f64 {
    match (numerator, denominator) {
        (Some(numerator), Some(denominator)) if denominator > 0 => numerator as f64 / denominator as f64,
        _ => f64::NAN,
    }
}

/// A quotient that can't be above 1 unless the counts contradict each other.
fn fraction(part: Option<u64>, whole: Option<u64>) -> f64 {
    if part > whole { f64::NAN } else { quotient(part, whole) }
}

/// One log line.
impl fmt::Display for SpecDecodeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = |f: &mut fmt::Formatter<'_>, name: &str, value: f64, digits: usize| {
            if value.is_nan() { write!(f, "{name} unknown, ") } else { write!(f, "{name} {value:.digits$}, ") }
        };
        ratio(f, "draft acceptance rate", self.draft_acceptance_rate(), 3)?;
        ratio(f, "system efficiency", self.system_efficiency(), 3)?;
        ratio(f, "mean acceptance length", self.mean_acceptance_length(), 2)?;
        let counts = [
            ("num_spec_tokens", self.num_spec_tokens),
            ("drafts", self.drafts),
            ("draft tokens", self.draft_tokens),
            ("accepted tokens", self.accepted_tokens),
            ("emitted tokens", self.emitted_tokens),
        ];
        for (index, (name, count)) in counts.into_iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            match count {
                Some(count) => write!(f, "{comma}{name} {count}")?,
                None => write!(f, "{comma}{name} unknown")?,
            }
        }
        Ok(())
    }
}
