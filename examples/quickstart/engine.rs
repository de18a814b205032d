//! The decode loop: a batch of sequences, one `spec_decode_step` span a step, and its own counts of what it did.

use tracing_spec_decode::{HostCounters, step_span};

use crate::language_model::LanguageModel;
use crate::rng::Rng;
use crate::speculative::{accept, draft, verify};
use crate::vocabulary::Token;

/// Tokens of the text that a sequence starts from.
pub(crate) const PROMPT_LEN: usize = 16;

/// Tokens after which a sequence is finished and a new one takes its place.
pub(crate) const MAX_NEW_TOKENS: usize = 250;

/// What the loop counted by itself, to hold the metrics against.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) steps: u64,
    /// The last k above 0.
    pub(crate) num_spec_tokens: Option<u64>,
    pub(crate) drafts: u64,
    pub(crate) draft_tokens: u64,
    pub(crate) accepted_tokens: u64,
    /// By sequences with a draft, the target model's own tokens included.
    pub(crate) emitted_tokens: u64,
    pub(crate) draft_tokens_per_position: Vec<u64>,
    pub(crate) accepted_per_position: Vec<u64>,
    /// By all sequences, with a draft or without.
    pub(crate) tokens: u64,
}

impl Counts {
    fn begin_step(&mut self, num_spec_tokens: usize, num_drafts: usize) {
        self.steps += 1;
        if num_drafts > 0 {
            self.num_spec_tokens = Some(num_spec_tokens as u64);
            self.draft_tokens_per_position.resize(num_spec_tokens, 0);
            self.accepted_per_position.resize(num_spec_tokens, 0);
        }
    }

    fn record_draft(&mut self, drafted: usize, accepted: usize, emitted: usize) {
        self.drafts += 1;
        self.draft_tokens += drafted as u64;
        self.accepted_tokens += accepted as u64;
        self.emitted_tokens += emitted as u64;
        self.draft_tokens_per_position.iter_mut().take(drafted).for_each(|count| *count += 1);
        self.accepted_per_position.iter_mut().take(accepted).for_each(|count| *count += 1);
    }

    pub(crate) fn draft_acceptance_rate(&self) -> f64 {
        self.accepted_tokens as f64 / self.draft_tokens as f64
    }

    pub(crate) fn system_efficiency(&self) -> f64 {
        self.emitted_tokens as f64 / (self.draft_tokens + self.drafts) as f64
    }

    pub(crate) fn mean_acceptance_length(&self) -> f64 {
        1.0 + self.accepted_tokens as f64 / self.drafts as f64
    }
}

/// The model whose text is wanted, and the cheaper one that proposes it.
#[derive(Debug)]
pub(crate) struct Models {
    pub(crate) target: LanguageModel,
    pub(crate) draft: LanguageModel,
}

/// One text that is being continued.
#[derive(Debug)]
struct Sequence {
    tokens: Vec<Token>,
    rng: Rng,
}

impl Sequence {
    fn new(text: &[Token], seed: u64, number: u64) -> Self {
        let mut rng = Rng::new(seed, number);
        let start = rng.below(text.len().saturating_sub(PROMPT_LEN));
        Self { tokens: text.iter().skip(start).take(PROMPT_LEN).copied().collect(), rng }
    }

    fn left(&self) -> usize {
        (PROMPT_LEN + MAX_NEW_TOKENS).saturating_sub(self.tokens.len())
    }

    /// A draft of k yields up to k + 1 tokens: near its end a sequence has room for fewer, at last for none.
    fn draft_len(&self, num_spec_tokens: usize) -> usize {
        num_spec_tokens.min(self.left().saturating_sub(1))
    }
}

/// The batch and its counts.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    models: &'a Models,
    text: &'a [Token],
    num_spec_tokens: usize,
    seed: u64,
    started: u64,
    batch: Vec<Sequence>,
    first: Option<Sequence>,
    counts: Counts,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(
        models: &'a Models,
        text: &'a [Token],
        num_spec_tokens: usize,
        batch_len: usize,
        seed: u64,
    ) -> Self {
        let started = batch_len as u64;
        let batch = (0..started).map(|number| Sequence::new(text, seed, number)).collect();
        Self { models, text, num_spec_tokens, seed, started, batch, first: None, counts: Counts::default() }
    }

    /// One step: a draft for each sequence, verified, and what was accepted is kept.
    pub(crate) fn step(&mut self, counters: &mut HostCounters) {
        let draft_lens: Vec<usize> = self.batch.iter().map(|s| s.draft_len(self.num_spec_tokens)).collect();
        let num_drafts = draft_lens.iter().filter(|&&len| len > 0).count();
        let span = step_span!(
            num_spec_tokens = self.num_spec_tokens as u64,
            num_drafts = num_drafts as u64,
            num_draft_tokens = draft_lens.iter().sum::<usize>() as u64,
        );
        let _inside = span.enter();

        let before = self.counts.clone();
        self.counts.begin_step(self.num_spec_tokens, num_drafts);
        for (sequence, draft_len) in self.batch.iter_mut().zip(draft_lens) {
            let draft = draft(&self.models.draft, &sequence.tokens, draft_len, &mut sequence.rng);
            let target = verify(&self.models.target, &sequence.tokens, &draft.tokens);
            let verdict = accept(&draft, &target, &mut sequence.rng);
            let emitted = verdict.emitted.len();
            if draft_len > 0 {
                counters.record_draft(draft_len as u32, verdict.accepted as u32, emitted as u32);
                self.counts.record_draft(draft_len, verdict.accepted, emitted);
            }
            self.counts.tokens += emitted as u64;
            sequence.tokens.extend(verdict.emitted);
        }
        span.record("num_accepted_tokens", self.counts.accepted_tokens - before.accepted_tokens);
        span.record("num_emitted_tokens", self.counts.emitted_tokens - before.emitted_tokens);
        span.record("num_sequences", self.batch.len() as u64);
        span.record("num_tokens", self.counts.tokens - before.tokens);
        self.replace_finished();
    }

    fn replace_finished(&mut self) {
        for sequence in self.batch.iter_mut().filter(|sequence| sequence.left() == 0) {
            let next = Sequence::new(self.text, self.seed, self.started);
            self.started += 1;
            let finished = std::mem::replace(sequence, next);
            self.first.get_or_insert(finished);
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The first sequence that was finished or, where none is, one in the making; its prompt included.
    pub(crate) fn sample(&self) -> &[Token] {
        self.first.as_ref().or(self.batch.first()).map_or(&[], |sequence| &sequence.tokens)
    }
}
