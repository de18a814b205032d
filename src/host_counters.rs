//! The source for engines that count on the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::sequence::Sequence;
use crate::source::{CounterSource, Counters, Layout, Snapshot, SourceError};

/// Counters in host memory, fed draft by draft.
///
/// For engines that know on the CPU what was accepted, also of each position. Feed it on the thread that closes the
/// step, or before it closes; it is read whole at each close, without a copy and without a lock.
///
/// ```
/// let mut counters = tracing_spec_decode::HostCounters::new();
/// let (draft, emitted) = ([17, 4, 9, 4, 2], [17, 4, 9, 1]);
/// assert!(counters.record_draft(draft.len(), 3, emitted.len()));
/// assert!(!counters.record_draft(4, 5, 5), "more accepted than drafted");
/// assert!(!counters.record_draft(usize::MAX, 0, 1), "no such draft");
/// assert!(!counters.record_draft(4, -1, 0), "a negative number of tokens");
/// ```
#[derive(Debug)]
pub struct HostCounters(Arc<Block>);

/// What is counted, and read by the source.
#[derive(Debug, Default)]
struct Block {
    sequence: Sequence,
    drafts: AtomicU64,
    draft_tokens: AtomicU64,
    accepted: AtomicU64,
    emitted: AtomicU64,
    accepted_exceeds_draft: AtomicU64,
    emitted_exceeds_possible: AtomicU64,
    accepted_per_position: Box<[AtomicU64]>,
    draft_per_position: Box<[AtomicU64]>,
    /// Positions that have been drafted: beyond them all is zero.
    seen: AtomicUsize,
}

impl HostCounters {
    const POSITIONS: usize = 16;

    /// Zeros, with 16 draft positions.
    #[must_use]
    pub fn new() -> Self {
        Self::with_positions(Self::POSITIONS)
    }

    /// Zeros, with as many draft positions. What is drafted beyond them is in the totals all the same.
    #[must_use]
    pub fn with_positions(positions: usize) -> Self {
        let zeros = || (0..positions).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Block { accepted_per_position: zeros(), draft_per_position: zeros(), ..Block::default() }))
    }

    /// One sequence's draft was verified: tokens drafted, the accepted prefix, and tokens emitted (the target model's
    /// own included). A draft of 0 tokens is none.
    ///
    /// Any integers will do, such as the lengths of slices. A draft that contradicts itself (more accepted than drafted,
    /// more emitted than drafted plus one, a number that is negative or too large) is an anomaly and nothing else, and
    /// false is returned: often the target model's own token has been counted as accepted.
    pub fn record_draft(
        &mut self,
        drafted: impl TryInto<u32>,
        accepted: impl TryInto<u32>,
        emitted: impl TryInto<u32>,
    ) -> bool {
        match (drafted.try_into(), accepted.try_into(), emitted.try_into()) {
            (Ok(drafted), Ok(accepted), Ok(emitted)) => self.count(drafted, accepted, emitted),
            // No such draft: refused as the plainest contradiction is.
            _ => self.count(0, 1, 0),
        }
    }

    fn count(&mut self, drafted: u32, accepted: u32, emitted: u32) -> bool {
        let block = &*self.0;
        let _open = block.sequence.open();
        if accepted > drafted {
            add(&block.accepted_exceeds_draft, 1);
            return false;
        }
        if emitted > drafted.saturating_add(1) {
            add(&block.emitted_exceeds_possible, 1);
            return false;
        }
        if drafted == 0 {
            return true;
        }
        add(&block.drafts, 1);
        add(&block.draft_tokens, drafted.into());
        add(&block.accepted, accepted.into());
        add(&block.emitted, emitted.into());
        block.draft_per_position.iter().take(drafted as usize).for_each(|tokens| add(tokens, 1));
        block.accepted_per_position.iter().take(accepted as usize).for_each(|tokens| add(tokens, 1));
        if block.seen.load(Ordering::Relaxed) < drafted as usize {
            block.seen.store(drafted as usize, Ordering::Relaxed);
        }
        true
    }

    /// The source to attach to an engine.
    #[must_use]
    pub fn source(&self) -> HostSource {
        HostSource { block: Arc::clone(&self.0), scratch: Counters::for_layout(self.0.layout()) }
    }
}

impl Default for HostCounters {
    fn default() -> Self {
        Self::new()
    }
}

impl Block {
    fn layout(&self) -> Layout {
        Layout::accepted()
            .with_emitted()
            .with_drafts()
            .with_draft_tokens()
            .with_accepted_positions(self.accepted_per_position.len())
            .with_draft_positions(self.draft_per_position.len())
    }

    fn copy_to(&self, counters: &mut Counters) {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        counters.drafts = load(&self.drafts);
        counters.draft_tokens = load(&self.draft_tokens);
        counters.accepted = load(&self.accepted);
        counters.emitted = load(&self.emitted);
        counters.accepted_exceeds_draft = load(&self.accepted_exceeds_draft);
        counters.emitted_exceeds_possible = load(&self.emitted_exceeds_possible);
        let seen = self.seen.load(Ordering::Relaxed);
        let copy = |to: &mut [u64], from: &[AtomicU64]| {
            to.iter_mut().zip(from).take(seen).for_each(|(to, from)| *to = load(from));
        };
        copy(&mut counters.accepted_per_position, &self.accepted_per_position);
        copy(&mut counters.draft_per_position, &self.draft_per_position);
    }
}

fn add(total: &AtomicU64, amount: u64) {
    total.store(total.load(Ordering::Relaxed).saturating_add(amount), Ordering::Relaxed);
}

/// The reading side of [`HostCounters`].
#[derive(Debug)]
pub struct HostSource {
    block: Arc<Block>,
    /// Where a copy goes until it is known to be whole.
    scratch: Counters,
}

impl CounterSource for HostSource {
    fn layout(&self) -> Layout {
        self.block.layout()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        let Self { block, scratch } = self;
        if !block.sequence.read(|| block.copy_to(scratch)) {
            return Ok(Snapshot::Pending);
        }
        std::mem::swap(scratch, counters);
        Ok(Snapshot::Landed)
    }

    fn is_on_host(&self) -> bool {
        true
    }
}
