//! Speculative sampling of one sequence: draft, verify, accept (Leviathan et al. 2023; Chen et al. 2023).
//!
//! Whatever the draft model proposes, what is emitted follows the target model's own distribution. The draft model
//! decides only how many tokens one pass of the target model yields.

use crate::language_model::{Distribution, LanguageModel};
use crate::rng::Rng;
use crate::vocabulary::Token;

/// Tokens that the draft model proposes, each with the distribution that it was drawn from.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) tokens: Vec<Token>,
    pub(crate) distributions: Vec<Distribution>,
}

/// What the target model makes of a draft.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The accepted prefix, and behind it one token of the target model's own.
    pub(crate) emitted: Vec<Token>,
    /// Length of the accepted prefix.
    pub(crate) accepted: usize,
}

/// The draft model continues `context` by `num_tokens` tokens, one pass each.
pub(crate) fn draft(model: &LanguageModel, context: &[Token], num_tokens: usize, rng: &mut Rng) -> Draft {
    let mut draft = Draft::default();
    let mut continued = context.to_vec();
    for _ in 0..num_tokens {
        let distribution = model.next_token(&continued);
        let token = sample(&distribution, rng);
        continued.push(token);
        draft.tokens.push(token);
        draft.distributions.push(distribution);
    }
    draft
}

/// The target model's distribution at each drafted position and at the one behind them: one pass on a real device.
pub(crate) fn verify(model: &LanguageModel, context: &[Token], drafted: &[Token]) -> Vec<Distribution> {
    let continued = [context, drafted].concat();
    (context.len()..=continued.len()).map(|end| model.next_token(&continued[..end])).collect()
}

/// Accepts each draft token with probability min(1, p/q), up to the first that is rejected.
///
/// The target model then adds a token of its own: in place of a rejected one it is drawn from what the draft model
/// proposes too rarely, behind a draft that was accepted whole (an empty one too) from the target distribution there.
pub(crate) fn accept(draft: &Draft, target: &[Distribution], rng: &mut Rng) -> Verdict {
    let mut verdict = Verdict::default();
    for ((&token, proposed), wanted) in draft.tokens.iter().zip(&draft.distributions).zip(target) {
        let (p, q) = (wanted[usize::from(token)], proposed[usize::from(token)]);
        if rng.uniform() * q >= p {
            verdict.emitted.push(sample(&residual(wanted, proposed), rng));
            return verdict;
        }
        verdict.emitted.push(token);
        verdict.accepted += 1;
    }
    if let Some(bonus) = target.get(draft.tokens.len()) {
        verdict.emitted.push(sample(bonus, rng));
    }
    verdict
}

/// max(0, p - q), normalised.
fn residual(wanted: &Distribution, proposed: &Distribution) -> Distribution {
    let mut residual: Distribution = wanted.iter().zip(proposed).map(|(p, q)| (p - q).max(0.0)).collect();
    let total: f64 = residual.iter().sum();
    if total <= 0.0 {
        // Equal but for rounding.
        return wanted.clone();
    }
    residual.iter_mut().for_each(|probability| *probability /= total);
    residual
}

/// Draws one token, from the one random number that it takes.
pub(crate) fn sample(distribution: &Distribution, rng: &mut Rng) -> Token {
    let mut left = rng.uniform();
    let mut drawn = 0;
    for (token, &probability) in (0..=Token::MAX).zip(distribution) {
        if probability > 0.0 {
            // Rounding may leave a little behind the last possible token: it then goes to that one.
            drawn = token;
            if left < probability {
                break;
            }
            left -= probability;
        }
    }
    drawn
}
