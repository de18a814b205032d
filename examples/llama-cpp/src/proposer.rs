//! Where drafts come from.

use anyhow::Result;

use crate::lookup::look_up;
use crate::model::Model;
use crate::runner::{Capacity, Input, Runner};
use crate::sampling::{Draft, Method};
use crate::sequence::Sequence;

/// The cheap half of speculative decoding.
#[derive(Debug)]
pub(crate) enum Proposer<'m> {
    PromptLookup { max_ngram: usize },
    DraftModel(DraftModel<'m>),
}

impl Proposer<'_> {
    pub(crate) fn prefill(&mut self, sequences: &[Sequence]) -> Result<()> {
        match self {
            Self::PromptLookup { .. } => Ok(()),
            Self::DraftModel(model) => model.prefill(sequences),
        }
    }

    /// A draft for each sequence, of up to so many tokens each.
    pub(crate) fn propose(&mut self, sequences: &mut [Sequence], lens: &[usize], method: Method) -> Result<Vec<Draft>> {
        match self {
            Self::PromptLookup { max_ngram } => Ok(sequences
                .iter()
                .zip(lens)
                .map(|(sequence, &len)| Draft {
                    tokens: look_up(&sequence.tokens, *max_ngram, len).to_vec(),
                    distributions: Vec::new(),
                })
                .collect()),
            Self::DraftModel(model) => model.propose(sequences, lens, method),
        }
    }

    /// After verification: forgets what was rejected.
    pub(crate) fn settle(&mut self, sequences: &[Sequence]) -> Result<()> {
        match self {
            Self::PromptLookup { .. } => Ok(()),
            Self::DraftModel(model) => model.settle(sequences),
        }
    }
}

/// A smaller model with the target's vocabulary.
#[derive(Debug)]
pub(crate) struct DraftModel<'m> {
    model: &'m Model,
    runner: Runner<'m>,
}

impl<'m> DraftModel<'m> {
    pub(crate) fn new(model: &'m Model, capacity: Capacity) -> Result<Self> {
        Ok(Self { model, runner: Runner::new(model, capacity)? })
    }

    fn prefill(&mut self, sequences: &[Sequence]) -> Result<()> {
        for (number, sequence) in sequences.iter().enumerate() {
            self.runner.prefill(number, sequence.all_but_last())?;
        }
        Ok(())
    }

    /// One pass for each further token, over all sequences that are to have one.
    fn propose(&mut self, sequences: &mut [Sequence], lens: &[usize], method: Method) -> Result<Vec<Draft>> {
        let mut drafts: Vec<Draft> = sequences.iter().map(|_| Draft::default()).collect();
        loop {
            let inputs = self.next_inputs(sequences, &drafts, lens);
            if inputs.is_empty() {
                return Ok(drafts);
            }
            let rows = self.runner.pass(&inputs)?;
            for (input, row) in inputs.iter().zip(rows) {
                let rng = &mut sequences[input.sequence].draft_rng;
                let (token, distribution) = method.choose(self.runner.logits(row), rng);
                let draft = &mut drafts[input.sequence];
                draft.tokens.push(token);
                draft.distributions.extend(distribution);
            }
        }
    }

    /// What this model has not read yet of each sequence whose draft goes on.
    fn next_inputs(&self, sequences: &[Sequence], drafts: &[Draft], lens: &[usize]) -> Vec<Input> {
        let goes_on = |draft: &Draft, len: usize| {
            draft.tokens.len() < len && !draft.tokens.last().is_some_and(|&token| self.model.is_end(token))
        };
        let unread = |number: usize, draft: &Draft| {
            let tokens = sequences[number].tokens.iter().chain(&draft.tokens);
            tokens.skip(self.runner.cached(number)).copied().collect()
        };
        let drafts = drafts.iter().zip(lens).enumerate();
        drafts
            .filter(|(_, (draft, len))| goes_on(draft, **len))
            .map(|(number, (draft, _))| Input { sequence: number, tokens: unread(number, draft), outputs: 1 })
            .collect()
    }

    fn settle(&mut self, sequences: &[Sequence]) -> Result<()> {
        for (number, sequence) in sequences.iter().enumerate() {
            self.runner.keep(number, sequence.all_but_last().len())?;
        }
        Ok(())
    }
}
