//! Which word of a block of counters is what.

use std::ops::Range;

use crate::source::{Counters, Layout};

/// Which word of a packed block of `i64` counters holds which quantity. All count from zero and never fall.
///
/// ```
/// use tracing_spec_decode::cuda::Words;
///
/// // accepted, emitted, drafts, and five words of accepted tokens per position
/// let words = Words::accepted_at(0).with_emitted_at(1).with_drafts_at(2).with_accepted_positions_at(3..8);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    accepted: usize,
    emitted: Option<usize>,
    drafts: Option<usize>,
    draft_tokens: Option<usize>,
    accepted_positions: Range<usize>,
    draft_positions: Range<usize>,
}

impl Words {
    /// The accepted prefix is at this word; the target model's own token is not in it.
    #[must_use]
    pub const fn accepted_at(word: usize) -> Self {
        Self {
            accepted: word,
            emitted: None,
            drafts: None,
            draft_tokens: None,
            accepted_positions: 0..0,
            draft_positions: 0..0,
        }
    }

    /// Tokens emitted by the drafted sequences are at this word.
    #[must_use]
    pub fn with_emitted_at(self, word: usize) -> Self {
        Self { emitted: Some(word), ..self }
    }

    /// Drafts (verified sequences) are at this word. An engine that submits further steps before a step is closed
    /// needs this word and the next: only then does a sample belong to one instant.
    #[must_use]
    pub fn with_drafts_at(self, word: usize) -> Self {
        Self { drafts: Some(word), ..self }
    }

    /// Draft tokens are at this word.
    #[must_use]
    pub fn with_draft_tokens_at(self, word: usize) -> Self {
        Self { draft_tokens: Some(word), ..self }
    }

    /// Accepted tokens per draft position, from position 0, are at these words.
    #[must_use]
    pub fn with_accepted_positions_at(self, words: Range<usize>) -> Self {
        Self { accepted_positions: words, ..self }
    }

    /// Draft tokens per draft position, from position 0, are at these words.
    #[must_use]
    pub fn with_draft_positions_at(self, words: Range<usize>) -> Self {
        Self { draft_positions: words, ..self }
    }

    /// Whether every word named lies in a block of so many.
    pub(super) fn fit(&self, words: usize) -> bool {
        let single = [Some(self.accepted), self.emitted, self.drafts, self.draft_tokens];
        let ranges = [&self.accepted_positions, &self.draft_positions];
        single.into_iter().flatten().all(|word| word < words)
            && ranges.into_iter().all(|range| range.start <= range.end && range.end <= words)
    }

    pub(super) fn layout(&self) -> Layout {
        let mut layout = Layout::accepted()
            .with_accepted_positions(self.accepted_positions.len())
            .with_draft_positions(self.draft_positions.len());
        if self.emitted.is_some() {
            layout = layout.with_emitted();
        }
        if self.drafts.is_some() {
            layout = layout.with_drafts();
        }
        if self.draft_tokens.is_some() {
            layout = layout.with_draft_tokens();
        }
        layout
    }

    /// Sorts a block into its quantities. `None`, and nothing written, where a word is below zero: no count is, so the
    /// block is not what it was said to be, or was overwritten.
    pub(super) fn read(&self, block: &[i64], counters: &mut Counters) -> Option<()> {
        let word = |index: usize| block.get(index).and_then(|word| u64::try_from(*word).ok());
        let single = |index: Option<usize>| index.map_or(Some(0), word);
        let (accepted, emitted) = (word(self.accepted)?, single(self.emitted)?);
        let (drafts, draft_tokens) = (single(self.drafts)?, single(self.draft_tokens)?);
        let mut positions = self.accepted_positions.clone().chain(self.draft_positions.clone());
        if !positions.all(|index| word(index).is_some()) {
            return None;
        }
        counters.accepted = accepted;
        counters.emitted = emitted;
        counters.drafts = drafts;
        counters.draft_tokens = draft_tokens;
        for (place, index) in counters.accepted_per_position.iter_mut().zip(self.accepted_positions.clone()) {
            *place = word(index)?;
        }
        for (place, index) in counters.draft_per_position.iter_mut().zip(self.draft_positions.clone()) {
            *place = word(index)?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_below_zero_writes_nothing() {
        let words = Words::accepted_at(0).with_emitted_at(1).with_accepted_positions_at(2..4);
        let mut counters = Counters::for_layout(words.layout());
        assert_eq!(words.read(&[3, 4, 2, 1], &mut counters), Some(()));
        let before = counters.clone();
        for block in [[-1, 4, 2, 1], [3, i64::MIN, 2, 1], [9, 9, 9, -1]] {
            assert_eq!(words.read(&block, &mut counters), None);
            assert_eq!(counters, before);
        }
        assert_eq!((before.accepted, before.emitted, &before.accepted_per_position[..]), (3, 4, &[2, 1][..]));
    }

    #[test]
    fn words_beyond_the_block_do_not_fit() {
        assert!(Words::accepted_at(0).with_draft_positions_at(1..3).fit(3));
        assert!(!Words::accepted_at(3).fit(3));
        assert!(!Words::accepted_at(0).with_draft_positions_at(1..4).fit(3));
    }
}
