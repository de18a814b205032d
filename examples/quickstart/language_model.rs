//! A language model: n-grams of one order and all below it, interpolated as Witten and Bell do.
//!
//! The order is what makes a model good and dear: of each further token of context it looks up one more table and mixes
//! in one more distribution. The same text at a low order is therefore a draft model for itself at a high one.

use std::collections::HashMap;

use crate::vocabulary::Token;

/// A probability for every token of the vocabulary, adding up to 1.
pub(crate) type Distribution = Vec<f64>;

/// Contexts are packed into 64 bits, a byte a token.
const MAX_ORDER: usize = 8;

/// An n-gram model with full support: no token is ever impossible.
#[derive(Debug)]
pub(crate) struct LanguageModel {
    vocabulary_len: usize,
    /// What followed each context of 0, 1, 2, ... tokens.
    levels: Vec<HashMap<u64, Followers>>,
}

#[derive(Debug, Default)]
struct Followers {
    total: u32,
    counts: Vec<(Token, u32)>,
}

impl LanguageModel {
    /// Counts the n-grams of `text` up to `order` tokens, context and follower together.
    pub(crate) fn train(text: &[Token], vocabulary_len: usize, order: usize) -> Self {
        let levels = (1..=order.clamp(1, MAX_ORDER)).map(|length| count(text, length)).collect();
        Self { vocabulary_len, levels }
    }

    /// The distribution of the token that follows `context`.
    pub(crate) fn next_token(&self, context: &[Token]) -> Distribution {
        let mut distribution = vec![1.0 / self.vocabulary_len as f64; self.vocabulary_len];
        for (length, contexts) in self.levels.iter().enumerate().take(context.len() + 1) {
            // A context that never occurred has no longer one that did.
            let Some(followers) = contexts.get(&pack(&context[context.len() - length..])) else { break };
            followers.refine(&mut distribution);
        }
        distribution
    }
}

impl Followers {
    fn add(&mut self, token: Token) {
        self.total += 1;
        match self.counts.iter_mut().find(|(follower, _)| *follower == token) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((token, 1)),
        }
    }

    /// Leaves to the shorter contexts a share that grows with the number of different followers of this one.
    fn refine(&self, distribution: &mut Distribution) {
        let different = self.counts.len() as f64;
        let scale = 1.0 / (f64::from(self.total) + different);
        distribution.iter_mut().for_each(|probability| *probability *= different * scale);
        for &(token, count) in &self.counts {
            distribution[usize::from(token)] += f64::from(count) * scale;
        }
    }
}

fn count(text: &[Token], length: usize) -> HashMap<u64, Followers> {
    let mut contexts: HashMap<u64, Followers> = HashMap::new();
    for ngram in text.windows(length) {
        if let [context @ .., token] = ngram {
            contexts.entry(pack(context)).or_default().add(*token);
        }
    }
    contexts
}

fn pack(context: &[Token]) -> u64 {
    context.iter().fold(0, |packed, &token| packed << 8 | u64::from(token))
}
