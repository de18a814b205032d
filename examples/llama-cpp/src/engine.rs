//! The decode loop: each step drafts, verifies the drafts of all sequences in one pass, and keeps what was accepted.

use std::time::Instant;

use anyhow::{Result, ensure};
use tracing::info_span;
use tracing_spec_decode::{HostCounters, step_span};

use crate::counts::Counts;
use crate::lookahead::Lookahead;
use crate::model::{Model, Token};
use crate::proposer::{DraftModel, Proposer};
use crate::runner::{Capacity, Input, Runner};
use crate::sampling::{Draft, Method, Verdict};
use crate::sequence::Sequence;

/// Where drafts come from.
#[derive(Debug, Clone, Copy)]
pub enum Drafting<'m> {
    /// Nowhere: one token a step.
    Off,
    /// The text itself, by runs of up to so many tokens.
    PromptLookup(usize),
    /// Another model.
    Model(&'m Model),
}

#[derive(Debug, Clone, Copy)]
pub struct Settings<'m> {
    /// What the layer calls this engine.
    pub name: &'static str,
    pub drafting: Drafting<'m>,
    pub lookahead: Lookahead,
    pub method: Method,
    pub max_tokens: usize,
    pub seed: u64,
    pub capacity: Capacity,
}

#[derive(Debug)]
pub struct Engine<'m> {
    name: &'static str,
    model: &'m Model,
    target: Runner<'m>,
    proposer: Option<Proposer<'m>>,
    lookahead: Lookahead,
    method: Method,
    sequences: Vec<Sequence>,
    counts: Counts,
    pub counters: HostCounters,
}

impl<'m> Engine<'m> {
    /// Makes the models ready for as many sequences as the capacity says; they take the prompts in turn.
    ///
    /// # Errors
    ///
    /// The settings contradict each other or a prompt.
    pub fn new(model: &'m Model, prompts: &[Vec<Token>], settings: Settings<'m>) -> Result<Self> {
        let Capacity { sequences, context, batch, .. } = settings.capacity;
        for len in prompts.iter().map(Vec::len) {
            ensure!(len > 0, "the prompt is empty");
            ensure!(len < context, "the prompt has {len} tokens, for which a context of {context} has no room");
        }
        let k = match settings.drafting {
            Drafting::Off => 0,
            _ => settings.lookahead.max(),
        };
        let pass = sequences * (k + 1);
        ensure!(
            pass <= batch,
            "{k} draft tokens for {sequences} sequences make a pass of {pass}, over the {batch} of a batch"
        );
        let proposer = match settings.drafting {
            Drafting::Off => None,
            Drafting::PromptLookup(max_ngram) => Some(Proposer::PromptLookup { max_ngram }),
            Drafting::Model(draft) => {
                let (one, other) = (&model.name, &draft.name);
                ensure!(
                    draft.shares_vocabulary_with(model),
                    "{other} cannot draft for {one}: their vocabularies differ"
                );
                Some(Proposer::DraftModel(DraftModel::new(draft, settings.capacity)?))
            }
        };
        let start = |(prompt, seed): (&Vec<Token>, u64)| {
            Sequence::new(prompt, context.min(prompt.len() + settings.max_tokens), seed)
        };
        Ok(Self {
            name: settings.name,
            model,
            target: Runner::new(model, settings.capacity)?,
            proposer,
            lookahead: settings.lookahead,
            method: settings.method,
            sequences: prompts.iter().cycle().zip(settings.seed..).take(sequences).map(start).collect(),
            counts: Counts::default(),
            counters: HostCounters::with_positions(k),
        })
    }

    /// Reads the prompts, but for their last token: that one is the first step's.
    ///
    /// # Errors
    ///
    /// llama.cpp refuses a pass.
    pub fn prefill(&mut self) -> Result<()> {
        let _inside = info_span!("prefill").entered();
        for (number, sequence) in self.sequences.iter().enumerate() {
            self.target.prefill(number, sequence.all_but_last())?;
        }
        self.proposer.as_mut().map_or(Ok(()), |proposer| proposer.prefill(&self.sequences))
    }

    /// One token or more for each sequence that is not at its end.
    ///
    /// # Errors
    ///
    /// llama.cpp refuses a pass.
    pub fn step(&mut self) -> Result<()> {
        let k = self.num_spec_tokens();
        let span = step_span!(engine = self.name, num_spec_tokens = k);
        let _inside = span.enter();

        let start = Instant::now();
        let drafts = info_span!("spec_decode_draft").in_scope(|| self.draft(k))?;
        let drafted = Instant::now();
        span.record("num_drafts", drafts.iter().filter(|draft| !draft.tokens.is_empty()).count());
        span.record("num_draft_tokens", drafts.iter().map(|draft| draft.tokens.len()).sum::<usize>());

        let verdicts = info_span!("spec_decode_verify").in_scope(|| self.verify(&drafts))?;
        let before = self.counts.clone();
        self.counts.begin_step(k);
        self.settle(&drafts, &verdicts)?;
        span.record("num_accepted_tokens", self.counts.accepted_tokens - before.accepted_tokens);
        span.record("num_emitted_tokens", self.counts.emitted_tokens - before.emitted_tokens);
        span.record("num_tokens", self.counts.tokens - before.tokens);

        self.counts.drafting += drafted - start;
        self.counts.verifying += drafted.elapsed();
        Ok(())
    }

    /// A draft for each sequence, empty where none is wanted or none can be made.
    fn draft(&mut self, k: usize) -> Result<Vec<Draft>> {
        let lens: Vec<usize> = self.sequences.iter().map(|sequence| sequence.draft_len(k)).collect();
        match &mut self.proposer {
            Some(proposer) => proposer.propose(&mut self.sequences, &lens, self.method),
            None => Ok(lens.iter().map(|_| Draft::default()).collect()),
        }
    }

    /// One pass over the last token and the draft of each sequence, and what the target model says to each draft.
    fn verify(&mut self, drafts: &[Draft]) -> Result<Vec<(usize, Verdict)>> {
        let active = self.sequences.iter().enumerate().filter(|(_, sequence)| sequence.end().is_none());
        let inputs: Vec<Input> = active
            .map(|(number, sequence)| {
                let tokens: Vec<Token> =
                    sequence.tokens.last().into_iter().chain(&drafts[number].tokens).copied().collect();
                Input { sequence: number, outputs: tokens.len(), tokens }
            })
            .collect();
        let rows = self.target.pass(&inputs)?;
        let verdict = |(input, row): (&Input, usize)| {
            let logits = |position| self.target.logits(row + position);
            let rng = &mut self.sequences[input.sequence].rng;
            let ends = |token| self.model.is_end(token);
            (input.sequence, self.method.verify(&drafts[input.sequence], logits, ends, rng))
        };
        Ok(inputs.iter().zip(rows).map(verdict).collect())
    }

    /// Keeps what was emitted, in the texts and in the caches, and counts it.
    fn settle(&mut self, drafts: &[Draft], verdicts: &[(usize, Verdict)]) -> Result<()> {
        let (mut all_drafted, mut all_accepted) = (0, 0);
        for (number, Verdict { accepted, emitted }) in verdicts {
            let (drafted, sequence) = (drafts[*number].tokens.len(), &mut self.sequences[*number]);
            sequence.extend(emitted, |token| self.model.is_end(token));
            self.target.keep(*number, sequence.all_but_last().len())?;
            self.counts.add(drafted, *accepted, emitted.len());
            self.counters.record_draft(drafted, *accepted, emitted.len());
            all_drafted += drafted;
            all_accepted += accepted;
        }
        self.lookahead.learn(all_drafted, all_accepted);
        self.proposer.as_mut().map_or(Ok(()), |proposer| proposer.settle(&self.sequences))
    }

    fn num_spec_tokens(&self) -> usize {
        if self.proposer.is_some() { self.lookahead.k() } else { 0 }
    }

    #[must_use]
    pub fn is_done(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.end().is_some())
    }

    #[must_use]
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}
