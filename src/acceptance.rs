//! How many tokens a draft gives at any k: the chance of each draft position to be accepted.

use std::iter;

use crate::metrics::SpecDecodeMetrics;
use crate::payoff::Payoff;

/// What an [`Estimate`](crate::Estimate) knows of the acceptance at its k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Every position up to k was counted.
    PerPosition,
    /// k lies beyond the positions that were counted: the last conditional acceptance is taken to go on. It mostly
    /// falls from position to position, so this is rather too high.
    Extrapolated,
    /// Nothing was counted by position: every draft token is taken to be accepted with one probability, whatever its
    /// position, as Leviathan et al. assume. It is the one that gives the accepted tokens counted at the k in use.
    ConstantAcceptance,
}

/// The survival of each position: the probability that a draft which reaches it is accepted up to and with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Acceptance {
    /// Of the positions that were counted; it never rises.
    survival: Vec<f64>,
    /// The conditional acceptance of every later position.
    beyond: f64,
    basis_beyond: Basis,
}

impl Acceptance {
    /// `None` where it was not counted, not often enough, or where the counts contradict each other.
    pub(crate) fn of(metrics: &SpecDecodeMetrics) -> Option<Self> {
        let num_spec_tokens = mean_num_spec_tokens(metrics)?;
        let (drafts, accepted) = (metrics.drafts?, metrics.accepted_tokens?);
        if accepted > metrics.draft_tokens? {
            return None;
        }
        match (&metrics.accepted_per_position, &metrics.draft_per_position) {
            (Some(accepted), Some(draft)) if often(draft.first()) => Self::per_position(accepted, draft),
            _ => {
                let tokens_per_draft = 1.0 + accepted as f64 / drafts as f64;
                constant_acceptance(tokens_per_draft, num_spec_tokens).map(Self::constant)
            }
        }
    }

    fn per_position(accepted: &[u64], draft: &[u64]) -> Option<Self> {
        let contradictory = |(position, &accepted)| accepted > draft.get(position).copied().unwrap_or_default();
        if accepted.iter().enumerate().any(contradictory) {
            return None;
        }
        // Where k follows the acceptance (long drafts for easy text), late positions look better than they are.
        let never_rising = |lowest: &mut f64, rate: f64| {
            *lowest = lowest.min(rate);
            Some(*lowest)
        };
        let counted = accepted.iter().zip(draft).take_while(|(_, draft)| often(Some(draft)));
        let rates = counted.map(|(&accepted, &draft)| accepted as f64 / draft as f64);
        let survival: Vec<f64> = rates.scan(1.0, never_rising).collect();
        let mut backwards = survival.iter().rev().copied().chain([1.0]);
        let beyond = match (backwards.next(), backwards.next()) {
            (Some(last), Some(before)) if before > 0.0 => last / before,
            _ => 0.0,
        };
        Some(Self { survival, beyond, basis_beyond: Basis::Extrapolated })
    }

    fn constant(acceptance: f64) -> Self {
        Self { survival: Vec::new(), beyond: acceptance, basis_beyond: Basis::ConstantAcceptance }
    }

    /// 1 + the survivals of the first k positions. A k between two whole ones is a mixture of them.
    pub(crate) fn tokens_per_draft(&self, k: f64) -> f64 {
        let last = self.survival.last().copied().unwrap_or(1.0);
        let later = iter::successors(Some(last * self.beyond), |survival| Some(survival * self.beyond));
        let left = iter::successors(Some(k), |left| Some(left - 1.0)).take_while(|&left| left > 0.0);
        let survivals = self.survival.iter().copied().chain(later);
        1.0 + left.zip(survivals).map(|(left, survival)| left.min(1.0) * survival).sum::<f64>()
    }

    pub(crate) fn basis(&self, k: u64) -> Basis {
        let counted = usize::try_from(k).is_ok_and(|k| k <= self.survival.len());
        if counted { Basis::PerPosition } else { self.basis_beyond }
    }
}

/// The k in use: draft tokens per draft.
pub(crate) fn mean_num_spec_tokens(metrics: &SpecDecodeMetrics) -> Option<f64> {
    let drafts = metrics.drafts.filter(|drafts| often(Some(drafts)))?;
    let mean = metrics.draft_tokens? as f64 / drafts as f64;
    (1.0..=Payoff::MAX_NUM_SPEC_TOKENS as f64).contains(&mean).then_some(mean)
}

/// The one acceptance probability that gives so many tokens per draft at k; `None` where none does.
pub(crate) fn constant_acceptance(tokens_per_draft: f64, k: f64) -> Option<f64> {
    if tokens_per_draft <= 1.0 {
        return Some(0.0);
    }
    if tokens_per_draft > 1.0 + k {
        return None;
    }
    // Bisection, since there is no closed form: the tokens per draft rise with the acceptance.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = (low + high) / 2.0;
        if Acceptance::constant(middle).tokens_per_draft(k) < tokens_per_draft { low = middle } else { high = middle }
    }
    Some(high)
}

fn often(count: Option<&u64>) -> bool {
    count.is_some_and(|&count| count >= Payoff::MIN_STEPS)
}

#[cfg(test)]
mod tests {
    use super::{Acceptance, constant_acceptance};

    #[test]
    fn a_constant_acceptance_is_found_again() {
        for acceptance in [0.0, 0.001, 0.3, 0.75, 0.999, 1.0] {
            for k in [1.0, 2.5, 7.0, 1024.0] {
                let tokens_per_draft = Acceptance::constant(acceptance).tokens_per_draft(k);
                let found = constant_acceptance(tokens_per_draft, k).unwrap();
                assert!((found - acceptance).abs() < 1e-12, "{found} for {acceptance} at {k}");
            }
        }
        assert_eq!(constant_acceptance(4.01, 3.0), None);
    }

    #[test]
    fn a_k_between_two_is_a_mixture_of_them() {
        let acceptance = Acceptance::per_position(&[80, 50, 30], &[100, 100, 100]).unwrap();
        assert_eq!(acceptance.tokens_per_draft(1.0), 1.8);
        assert_eq!(acceptance.tokens_per_draft(2.0), 2.3);
        assert!((acceptance.tokens_per_draft(1.25) - (0.75 * 1.8 + 0.25 * 2.3)).abs() < 1e-12);
    }

    #[test]
    fn the_last_conditional_acceptance_goes_on() {
        let acceptance = Acceptance::per_position(&[80, 40], &[100, 100]).unwrap();
        assert!((acceptance.tokens_per_draft(4.0) - (1.0 + 0.8 + 0.4 + 0.2 + 0.1)).abs() < 1e-12);
        let never = Acceptance::per_position(&[0, 0], &[100, 100]).unwrap();
        assert_eq!(never.tokens_per_draft(9.0), 1.0);
    }
}
