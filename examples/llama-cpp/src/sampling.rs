//! From logits to tokens, and which of a draft's tokens are kept (Leviathan et al. 2023; Chen et al. 2023).

use crate::model::Token;

/// Tokens proposed for one sequence.
#[derive(Debug, Default)]
pub struct Draft {
    pub tokens: Vec<Token>,
    /// What each was drawn from; empty where each was certain to be proposed.
    pub distributions: Vec<Distribution>,
}

/// What the target model makes of a draft.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// Length of the accepted prefix.
    pub accepted: usize,
    /// The accepted prefix, and behind it one token of the target model's own, unless the prefix ends the text.
    pub emitted: Vec<Token>,
}

/// How a token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// The likeliest.
    Greedy,
    /// Drawn from the softmax at this temperature.
    Sampling(f32),
}

impl Method {
    /// Accepts the draft's tokens up to the first that is rejected, where the target model's own takes its place.
    ///
    /// What is emitted follows the target model alone, however good or bad the draft is: greedily it is the same text,
    /// else the same distribution of texts. `logits` gives those behind the draft's first so many tokens.
    pub fn verify<'l>(
        self,
        draft: &Draft,
        logits: impl Fn(usize) -> &'l [f32],
        ends: impl Fn(Token) -> bool,
        rng: &mut fastrand::Rng,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        for (position, &token) in draft.tokens.iter().enumerate() {
            let chosen = self.judge(token, draft.distributions.get(position), logits(position), rng);
            verdict.emitted.push(chosen.unwrap_or(token));
            if chosen.is_some() {
                return verdict;
            }
            verdict.accepted += 1;
            if ends(token) {
                return verdict;
            }
        }
        verdict.emitted.push(self.choose(logits(draft.tokens.len()), rng).0);
        verdict
    }

    /// What the target model puts in the place of a drafted token; nothing if it accepts it.
    ///
    /// Drawn from q, a token is accepted with probability min(1, p / q), else replaced by one drawn from max(0, p - q).
    fn judge(
        self,
        token: Token,
        proposed: Option<&Distribution>,
        logits: &[f32],
        rng: &mut fastrand::Rng,
    ) -> Option<Token> {
        let Self::Sampling(temperature) = self else {
            return Some(likeliest(logits)).filter(|&chosen| chosen != token);
        };
        let wanted = Distribution::new(logits, temperature);
        let (p, q) = (wanted.probability(token), proposed.map_or(1.0, |proposed| proposed.probability(token)));
        if rng.f64() * q < p {
            return None;
        }
        let rest = match proposed {
            Some(proposed) => wanted.minus(proposed),
            None => wanted.without(token),
        };
        Some(rest.draw(rng))
    }

    /// A token, and what it was drawn from, if it was drawn.
    pub(crate) fn choose(self, logits: &[f32], rng: &mut fastrand::Rng) -> (Token, Option<Distribution>) {
        match self {
            Self::Greedy => (likeliest(logits), None),
            Self::Sampling(temperature) => {
                let distribution = Distribution::new(logits, temperature);
                (distribution.draw(rng), Some(distribution))
            }
        }
    }
}

/// The token with the largest logit; the first of equals.
#[must_use]
pub fn likeliest(logits: &[f32]) -> Token {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    Token(best.0)
}

/// Weights of all tokens, in proportion to their probabilities.
#[derive(Debug, Clone)]
pub struct Distribution {
    weights: Vec<f32>,
    total: f64,
}

impl Distribution {
    /// The softmax of logits at a temperature above 0.
    #[must_use]
    pub fn new(logits: &[f32], temperature: f32) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Self::of(logits.iter().map(|logit| ((logit - largest) / temperature).exp()).collect())
    }

    fn of(weights: Vec<f32>) -> Self {
        let total = weights.iter().copied().map(f64::from).sum();
        Self { weights, total }
    }

    #[must_use]
    pub fn probability(&self, token: Token) -> f64 {
        let weight = usize::try_from(token.0).ok().and_then(|id| self.weights.get(id));
        weight.map_or(0.0, |&weight| f64::from(weight) / self.total)
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> Token {
        let mut left = rng.f64() * self.total;
        let mut drawn = 0;
        for (id, &weight) in (0..).zip(&self.weights) {
            if weight > 0.0 {
                // What rounding leaves behind the last possible token goes to that one.
                drawn = id;
                left -= f64::from(weight);
                if left < 0.0 {
                    break;
                }
            }
        }
        Token(drawn)
    }

    /// max(0, p - q).
    fn minus(&self, other: &Self) -> Self {
        let scale = self.total / other.total;
        let pairs = self.weights.iter().zip(&other.weights);
        let rest = Self::of(pairs.map(|(&p, &q)| (f64::from(p) - f64::from(q) * scale).max(0.0) as f32).collect());
        // Nothing is left where the two are equal but for rounding.
        if rest.total > 0.0 { rest } else { self.clone() }
    }

    fn without(&self, token: Token) -> Self {
        let mut weights = self.weights.clone();
        if let Some(weight) = usize::try_from(token.0).ok().and_then(|id| weights.get_mut(id)) {
            *weight = 0.0;
        }
        let rest = Self::of(weights);
        if rest.total > 0.0 { rest } else { self.clone() }
    }
}
