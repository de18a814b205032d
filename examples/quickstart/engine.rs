//! The decode loop: a batch of sequences, one `spec_decode_step` span a step, and its own counts of what it did.

use std::thread;
use std::time::Duration;

use tracing::info_span;
use tracing_spec_decode::{HostCounters, step_span};

use crate::language_model::{Distribution, LanguageModel};
use crate::rng::Rng;
use crate::speculative::{Draft, accept, draft, verify};
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

/// How an engine decodes.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Its name among the engines of this process.
    pub(crate) engine: String,
    pub(crate) num_spec_tokens: usize,
    /// One step of so many drafts nothing, and is the baseline; 0: none.
    pub(crate) plain_every: u64,
    pub(crate) batch: usize,
    pub(crate) seed: u64,
    /// What a pass of the models takes besides, as on a device: n-grams alone take next to nothing.
    pub(crate) draft_pass: Duration,
    pub(crate) target_pass: Duration,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            engine: "0".to_owned(),
            num_spec_tokens: 4,
            plain_every: 0,
            batch: 8,
            seed: 0,
            draft_pass: Duration::ZERO,
            target_pass: Duration::ZERO,
        }
    }
}

/// The batch and its counts.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    models: &'a Models,
    text: &'a [Token],
    plan: Plan,
    started: u64,
    batch: Vec<Sequence>,
    first: Option<Sequence>,
    counts: Counts,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(models: &'a Models, text: &'a [Token], plan: Plan) -> Self {
        let started = plan.batch as u64;
        let batch = (0..started).map(|number| Sequence::new(text, plan.seed, number)).collect();
        Self { models, text, plan, started, batch, first: None, counts: Counts::default() }
    }

    /// The k of the next step.
    fn num_spec_tokens(&self) -> usize {
        let plain = self.plan.plain_every > 0 && self.counts.steps.is_multiple_of(self.plan.plain_every);
        if plain { 0 } else { self.plan.num_spec_tokens }
    }

    /// One step: a draft for each sequence, verified, and what was accepted is kept.
    pub(crate) fn step(&mut self, counters: &mut HostCounters) {
        let num_spec_tokens = self.num_spec_tokens();
        let draft_lens: Vec<usize> = self.batch.iter().map(|s| s.draft_len(num_spec_tokens)).collect();
        let num_drafts = draft_lens.iter().filter(|&&len| len > 0).count();
        let span = step_span!(
            engine = self.plan.engine.as_str(),
            num_spec_tokens = num_spec_tokens as u64,
            num_drafts = num_drafts as u64,
            num_draft_tokens = draft_lens.iter().sum::<usize>() as u64,
            num_sequences = self.batch.len() as u64,
        );
        let _inside = span.enter();

        let before = self.counts.clone();
        self.counts.begin_step(num_spec_tokens, num_drafts);
        let drafts = info_span!("spec_decode_draft").in_scope(|| self.draft(&draft_lens));
        let targets = info_span!("spec_decode_verify").in_scope(|| self.verify(&drafts));
        for ((sequence, draft), target) in self.batch.iter_mut().zip(&drafts).zip(&targets) {
            let verdict = accept(draft, target, &mut sequence.rng);
            let (drafted, emitted) = (draft.tokens.len(), verdict.emitted.len());
            if drafted > 0 {
                counters.record_draft(drafted as u32, verdict.accepted as u32, emitted as u32);
                self.counts.record_draft(drafted, verdict.accepted, emitted);
            }
            self.counts.tokens += emitted as u64;
            sequence.tokens.extend(verdict.emitted);
        }
        span.record("num_accepted_tokens", self.counts.accepted_tokens - before.accepted_tokens);
        span.record("num_emitted_tokens", self.counts.emitted_tokens - before.emitted_tokens);
        span.record("num_tokens", self.counts.tokens - before.tokens);
        self.replace_finished();
    }

    /// One pass of the draft model for each position, over the whole batch.
    fn draft(&mut self, draft_lens: &[usize]) -> Vec<Draft> {
        let passes = draft_lens.iter().max().copied().unwrap_or_default();
        take(self.plan.draft_pass * passes as u32);
        let sequences = self.batch.iter_mut().zip(draft_lens);
        sequences.map(|(s, &len)| draft(&self.models.draft, &s.tokens, len, &mut s.rng)).collect()
    }

    /// One pass of the target model over the whole batch.
    fn verify(&self, drafts: &[Draft]) -> Vec<Vec<Distribution>> {
        take(self.plan.target_pass);
        let sequences = self.batch.iter().zip(drafts);
        sequences.map(|(s, draft)| verify(&self.models.target, &s.tokens, &draft.tokens)).collect()
    }

    fn replace_finished(&mut self) {
        for sequence in self.batch.iter_mut().filter(|sequence| sequence.left() == 0) {
            let next = Sequence::new(self.text, self.plan.seed, self.started);
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

fn take(time: Duration) {
    if !time.is_zero() {
        thread::sleep(time);
    }
}
