//! What the loop counts by itself, to hold the layer's metrics against.

use std::time::Duration;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    pub steps: u64,
    /// Sequences whose drafts were verified.
    pub drafts: u64,
    pub draft_tokens: u64,
    pub accepted_tokens: u64,
    /// By sequences with a draft.
    pub emitted_tokens: u64,
    /// By all sequences, with a draft or without.
    pub tokens: u64,
    /// Up to the largest k so far.
    pub draft_tokens_per_position: Vec<u64>,
    pub accepted_per_position: Vec<u64>,
    pub drafting: Duration,
    pub verifying: Duration,
}

impl Counts {
    /// A step with drafts of up to `num_spec_tokens` tokens.
    pub(crate) fn begin_step(&mut self, num_spec_tokens: usize) {
        self.steps += 1;
        let positions = self.draft_tokens_per_position.len().max(num_spec_tokens);
        self.draft_tokens_per_position.resize(positions, 0);
        self.accepted_per_position.resize(positions, 0);
    }

    /// One sequence's part in a step.
    pub(crate) fn add(&mut self, drafted: usize, accepted: usize, emitted: usize) {
        self.tokens += emitted as u64;
        if drafted == 0 {
            return;
        }
        self.drafts += 1;
        self.draft_tokens += drafted as u64;
        self.accepted_tokens += accepted as u64;
        self.emitted_tokens += emitted as u64;
        self.draft_tokens_per_position[..drafted].iter_mut().for_each(|count| *count += 1);
        self.accepted_per_position[..accepted].iter_mut().for_each(|count| *count += 1);
    }
}
