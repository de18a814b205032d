//! One text in the making.

use crate::model::Token;

/// Why a text goes on no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model has ended it.
    EndOfText,
    /// It has all the tokens that were asked for, or that the context has room for.
    Limit,
}

#[derive(Debug)]
pub struct Sequence {
    /// The prompt's, and behind them those emitted.
    pub(crate) tokens: Vec<Token>,
    prompt_len: usize,
    max_len: usize,
    end: Option<End>,
    /// What the target model draws does not depend on how much was drawn for drafts.
    pub(crate) rng: fastrand::Rng,
    pub(crate) draft_rng: fastrand::Rng,
}

impl Sequence {
    pub(crate) fn new(prompt: &[Token], max_len: usize, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let draft_rng = rng.fork();
        Self { tokens: prompt.to_vec(), prompt_len: prompt.len(), max_len, end: None, rng, draft_rng }
    }

    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    #[must_use]
    pub fn emitted(&self) -> &[Token] {
        &self.tokens[self.prompt_len..]
    }

    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// What a model has read when it is about to read the last token, with a draft behind it.
    pub(crate) fn all_but_last(&self) -> &[Token] {
        &self.tokens[..self.tokens.len().saturating_sub(1)]
    }

    /// A draft of k yields up to k + 1 tokens: near its end a text has room for fewer, at last for none.
    pub(crate) fn draft_len(&self, num_spec_tokens: usize) -> usize {
        match self.end {
            Some(_) => 0,
            None => num_spec_tokens.min((self.max_len - self.tokens.len()).saturating_sub(1)),
        }
    }

    pub(crate) fn extend(&mut self, emitted: &[Token], ends: impl Fn(Token) -> bool) {
        self.tokens.extend(emitted);
        if self.tokens.last().is_some_and(|&token| ends(token)) {
            self.end = Some(End::EndOfText);
        } else if self.tokens.len() >= self.max_len {
            self.end = Some(End::Limit);
        }
    }
}
