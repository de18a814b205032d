//! The source for engines that count on the CPU.

use std::sync::Arc;

use crate::published::{Published, Reading, word};
use crate::quantity::Quantity;
use crate::source::{CounterSource, Counters, Layout, Snapshot, SourceError};

/// Counters in host memory, fed draft by draft.
///
/// For engines that know on the CPU what was accepted, also of each position. Feed it on the thread that closes the
/// step, or before it closes; it is read whole at each close, without a copy and without a lock.
///
/// ```
/// let mut counters = tracing_spec_decode::HostCounters::new();
/// assert!(counters.record_draft(5, 3, 4));
/// assert!(!counters.record_draft(4, 5, 5), "more accepted than drafted");
/// ```
#[derive(Debug)]
pub struct HostCounters {
    block: Arc<Published>,
    positions: usize,
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
        Self { block: Arc::new(Published::new(positions)), positions }
    }

    /// One sequence's draft was verified: tokens drafted, the accepted prefix, and tokens emitted (the target model's
    /// own included). A draft of 0 tokens is none.
    ///
    /// A draft that contradicts itself (more accepted than drafted, or more emitted than drafted plus one) is not
    /// counted at all, and false is returned: often the target model's own token has been counted as accepted. The
    /// fields of its step, where they give the same numbers, are counted as an anomaly by the layer.
    pub fn record_draft(&mut self, drafted: u32, accepted: u32, emitted: u32) -> bool {
        if drafted == 0 {
            return true;
        }
        if accepted > drafted || emitted > drafted.saturating_add(1) {
            return false;
        }
        let words = self.block.write();
        for (quantity, amount) in [
            (Quantity::Drafts, 1),
            (Quantity::DraftTokens, drafted),
            (Quantity::Accepted, accepted),
            (Quantity::Emitted, emitted),
        ] {
            words.add(word::TOTALS.wrapping_add(quantity as usize), amount.into());
        }
        words.add_to_positions(accepted as usize, drafted as usize);
        true
    }

    /// The source to attach to an engine.
    #[must_use]
    pub fn source(&self) -> HostSource {
        let (into, scratch) = (self.block.blank(), self.block.blank());
        HostSource { block: Arc::clone(&self.block), positions: self.positions, reading: into, scratch }
    }
}

impl Default for HostCounters {
    fn default() -> Self {
        Self::new()
    }
}

/// The reading side of [`HostCounters`].
#[derive(Debug)]
pub struct HostSource {
    block: Arc<Published>,
    positions: usize,
    reading: Reading,
    scratch: Reading,
}

impl CounterSource for HostSource {
    fn layout(&self) -> Layout {
        Layout::accepted()
            .with_emitted()
            .with_drafts()
            .with_draft_tokens()
            .with_accepted_positions(self.positions)
            .with_draft_positions(self.positions)
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        if !self.block.read(&mut self.reading, &mut self.scratch) {
            return Ok(Snapshot::Pending);
        }
        let [drafts, draft_tokens, accepted, emitted] =
            Quantity::ALL.map(|quantity| self.reading.words[word::TOTALS.wrapping_add(quantity as usize)]);
        counters.drafts = drafts;
        counters.draft_tokens = draft_tokens;
        counters.accepted = accepted;
        counters.emitted = emitted;
        let copy = |to: &mut [u64], from: &[u64]| to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        copy(&mut counters.accepted_per_position, &self.reading.accepted_per_position);
        copy(&mut counters.draft_per_position, &self.reading.draft_per_position);
        Ok(Snapshot::Landed)
    }

    fn is_on_host(&self) -> bool {
        true
    }
}
