//! What the engines here run on: sequences, and models that need some polls, make their tokens up, and fail at times.
//! A seed decides everything, so that two engines of one seed decode the same.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Notify;

use crate::rng::Rng;

/// A request that is being decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub tokens: Vec<u32>,
    /// Proposed, and not verified yet.
    pub draft: Vec<u32>,
    /// It ends at this length, wherever that falls within a draft.
    pub length: usize,
}

impl Sequence {
    pub fn of_length(length: usize) -> Self {
        Self { tokens: Vec::new(), draft: Vec::new(), length }
    }

    pub fn is_done(&self) -> bool {
        self.tokens.len() >= self.length
    }

    /// Appends tokens up to the end, and says how many.
    pub fn extend(&mut self, tokens: impl IntoIterator<Item = u32>) -> usize {
        let before = self.tokens.len();
        self.tokens.extend(tokens.into_iter().take(self.length - before));
        self.tokens.len() - before
    }
}

/// What became of one sequence's draft.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub drafted: usize,
    pub accepted: usize,
    pub emitted: usize,
}

/// A forward pass or a sampler has failed.
#[derive(Clone, Copy, Debug)]
pub struct Failed;

/// The draft model, the target model and the sampler.
#[derive(Debug)]
pub struct Models {
    rng: Rng,
    /// Set, the target's forward pass says that it has begun, and never ends.
    hang: Option<Arc<Notify>>,
}

impl Models {
    pub fn of_seed(seed: u64) -> Self {
        Self { rng: Rng::new(seed, 0), hang: None }
    }

    pub fn that_hang(begun: Arc<Notify>) -> Self {
        Self { rng: Rng::new(0, 0), hang: Some(begun) }
    }

    /// The target's pass over all drafts: how many tokens of each it agrees with.
    pub async fn forward(&mut self, drafts: &[Vec<u32>]) -> Result<Vec<usize>, Failed> {
        if let Some(begun) = &self.hang {
            begun.notify_one();
            std::future::pending::<()>().await;
        }
        self.work().await?;
        Ok(drafts.iter().map(|draft| self.rng.below(draft.len() + 1)).collect())
    }

    /// Keeps what the target agrees with, and a token of its own.
    pub async fn accept(&mut self, to: &mut Sequence, draft: Vec<u32>, agreed: usize) -> Result<Outcome, Failed> {
        self.work().await?;
        let own = self.token();
        let emitted = to.extend(draft.iter().copied().take(agreed).chain([own]));
        Ok(Outcome { drafted: draft.len(), accepted: agreed, emitted })
    }

    /// One token of the target, without a draft.
    pub async fn sample(&mut self, sequence: &mut Sequence) -> Result<(), Failed> {
        self.work().await?;
        let own = self.token();
        sequence.extend([own]);
        Ok(())
    }

    /// Up to `tokens` tokens of the draft model; now and then none.
    pub async fn propose(&mut self, tokens: usize) -> Result<Vec<u32>, Failed> {
        self.work().await?;
        let tokens = if self.rng.below(16) == 0 { 0 } else { 1 + self.rng.below(tokens) };
        Ok((0..tokens).map(|_| self.token()).collect())
    }

    /// Whether the cache has blocks for the drafts of a batch; now and then it has not.
    pub fn has_room(&mut self) -> bool {
        self.rng.below(10) > 0
    }

    /// How often a client polls a step before it gives up; mostly, often enough.
    pub fn patience(&mut self) -> usize {
        if self.rng.below(6) == 0 { self.rng.below(12) } else { usize::MAX }
    }

    /// Some polls, on whichever thread; one time in a hundred in vain.
    async fn work(&mut self) -> Result<(), Failed> {
        for _ in 0..self.rng.below(3) {
            tokio::task::yield_now().await;
        }
        if self.rng.below(100) == 0 { Err(Failed) } else { Ok(()) }
    }

    fn token(&mut self) -> u32 {
        self.rng.below(32_000) as u32
    }
}

/// Polls a future so often at most, then drops it: `None`.
pub async fn at_most<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        let Some(fewer) = left.checked_sub(1) else { return Poll::Ready(None) };
        left = fewer;
        Pin::as_mut(&mut future).poll(context).map(Some)
    })
    .await
}
