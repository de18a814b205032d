//! A speculative decoder of batches, in the shape that Rust engines have: a step is async, verifies what the step before
//! has drafted, and drafts for the next. It counts for its own log. `before.rs` is without instrumentation, `after.rs` is
//! the same with it, and `with_counters.rs` feeds counters on the host in place of the fields.

use super::model::{Failed, Models, Sequence, at_most};
use tracing::{Instrument, Span, info_span};
use tracing_spec_decode::step_span;

/// What the engine counts by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub steps: usize,
    pub steps_with_drafts: usize,
    pub verifications: usize,
    pub drafts: usize,
    pub draft_tokens: usize,
    pub accepted: usize,
    pub emitted: usize,
    pub discarded: usize,
}

#[derive(Debug)]
pub struct Engine {
    name: String,
    models: Models,
    num_spec_tokens: usize,
    stats: Stats,
}

impl Engine {
    const MAX_BATCH: usize = 4;

    pub fn new(name: &str, models: Models) -> Self {
        Self { name: name.to_owned(), models, num_spec_tokens: 4, stats: Stats::default() }
    }

    /// Decodes all sequences, as many at once as fit, and returns them with the engine's counts.
    pub async fn run(mut self, mut waiting: Vec<Sequence>) -> (Vec<Sequence>, Stats) {
        let (mut batch, mut done) = (Vec::new(), Vec::new());
        loop {
            let places = waiting.len().min(Self::MAX_BATCH - batch.len());
            batch.extend(waiting.drain(..places));
            if batch.is_empty() {
                log::info!("engine {}: {:?}", self.name, self.stats);
                return (done, self.stats);
            }
            self.stats.steps += 1;
            let patience = self.models.patience();
            let span = step_span!(engine = self.name.as_str(), num_sequences = batch.len());
            let step = self.step(&mut batch).instrument(span);
            // A step that has failed or was given up is made good by the next one.
            let _ = at_most(patience, step).await;
            done.extend(batch.extract_if(.., |sequence| sequence.is_done()));
        }
    }

    async fn step(&mut self, batch: &mut [Sequence]) -> Result<(), Failed> {
        if batch.iter().any(|sequence| sequence.draft.is_empty()) {
            // The first step, or somebody has joined: the drafts that there are can't be verified in this batch.
            self.discard(batch);
            self.bootstrap(batch).await?;
        } else if !self.models.has_room() {
            self.discard(batch);
            return Ok(());
        } else {
            self.verify(batch).await?;
        }
        self.propose(batch).instrument(info_span!("spec_decode_draft")).await
    }

    /// A token for each sequence, without drafts.
    async fn bootstrap(&mut self, batch: &mut [Sequence]) -> Result<(), Failed> {
        for sequence in batch.iter_mut() {
            self.models.sample(sequence).await?;
        }
        Span::current().record("num_tokens", batch.len());
        Ok(())
    }

    async fn verify(&mut self, batch: &mut [Sequence]) -> Result<(), Failed> {
        let drafts: Vec<_> = batch.iter_mut().map(|sequence| std::mem::take(&mut sequence.draft)).collect();
        self.stats.steps_with_drafts += 1;
        let span = Span::current();
        span.record("num_spec_tokens", self.num_spec_tokens);
        span.record("num_drafts", drafts.len());
        span.record("num_draft_tokens", drafts.iter().map(Vec::len).sum::<usize>());
        let agreed = self.models.forward(&drafts).instrument(info_span!("spec_decode_verify")).await?;
        let mut outcomes = Vec::with_capacity(batch.len());
        for ((sequence, draft), agreed) in batch.iter_mut().zip(drafts).zip(agreed) {
            outcomes.push(self.models.accept(sequence, draft, agreed).await?);
        }
        let emitted = outcomes.iter().map(|outcome| outcome.emitted).sum::<usize>();
        span.record("num_accepted_tokens", outcomes.iter().map(|outcome| outcome.accepted).sum::<usize>());
        span.record("num_emitted_tokens", emitted);
        span.record("num_tokens", emitted);
        self.stats.verifications += 1;
        for outcome in &outcomes {
            self.stats.drafts += 1;
            self.stats.draft_tokens += outcome.drafted;
            self.stats.accepted += outcome.accepted;
            self.stats.emitted += outcome.emitted;
        }
        Ok(())
    }

    async fn propose(&mut self, batch: &mut [Sequence]) -> Result<(), Failed> {
        for sequence in batch.iter_mut().filter(|sequence| !sequence.is_done()) {
            sequence.draft = self.models.propose(self.num_spec_tokens).await?;
        }
        Ok(())
    }

    fn discard(&mut self, batch: &mut [Sequence]) {
        let dropped = batch.iter_mut().map(|sequence| std::mem::take(&mut sequence.draft).len()).sum::<usize>();
        self.stats.discarded += dropped;
        Span::current().record("num_discarded_draft_tokens", dropped);
    }
}
