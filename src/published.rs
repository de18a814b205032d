//! An engine's numbers, written on its thread and read on others', all of one instant.

use std::time::{Duration, Instant};

use crate::anomaly::Anomaly;
use crate::outcome::{Outcome, Reason};
use crate::phases::Phase;
use crate::quantity::Quantity;
use crate::sequence::{Open, Sequence};
use crate::sync::{AtomicU64, Ordering};
use crate::ticks::NEVER;

/// Where each number of an engine is among its published words.
pub(crate) mod word {
    use super::{Anomaly, Outcome, Phase, Quantity, Reason};

    /// Steps closed, those without drafts, then those with; so are the next three.
    pub(crate) const STEPS: usize = 0;
    pub(crate) const STEP_TICKS: usize = STEPS + 2;
    pub(crate) const SEQUENCES: usize = STEP_TICKS + 2;
    pub(crate) const TOKENS: usize = SEQUENCES + 2;
    /// What the phases of steps with drafts took, in their order.
    pub(crate) const PHASE_TICKS: usize = TOKENS + 2;
    /// The totals of the four quantities, in their order.
    pub(crate) const TOTALS: usize = PHASE_TICKS + Phase::COUNT;
    pub(crate) const DISCARDED: usize = TOTALS + Quantity::COUNT;
    /// Which numbers somebody has given so far: see [`super::gave`].
    pub(crate) const GAVE: usize = DISCARDED + 1;
    /// The last k above 0.
    pub(crate) const NUM_SPEC_TOKENS: usize = GAVE + 1;
    /// Positions that have been seen: the largest k, or what a source counted.
    pub(crate) const POSITIONS: usize = NUM_SPEC_TOKENS + 1;
    /// The last sample of the source.
    pub(crate) const LAST_SAMPLE: usize = POSITIONS + 1;
    pub(crate) const SOURCE_STATE: usize = LAST_SAMPLE + 1;
    pub(crate) const IN_FLIGHT_SINCE: usize = SOURCE_STATE + 1;
    pub(crate) const COLLECTION_TICKS: usize = IN_FLIGHT_SINCE + 1;
    /// Which gauges the last window has: see [`crate::window`].
    pub(crate) const WINDOW_GAUGES: usize = COLLECTION_TICKS + 1;
    pub(crate) const WINDOW_END: usize = WINDOW_GAUGES + 1;
    pub(crate) const WINDOW_LENGTH: usize = WINDOW_END + 1;
    pub(crate) const WINDOW_NUM_SPEC_TOKENS: usize = WINDOW_LENGTH + 1;
    /// The sums of the four quantities over the last window, in their order.
    pub(crate) const WINDOW_SUMS: usize = WINDOW_NUM_SPEC_TOKENS + 1;
    pub(crate) const ANOMALIES: usize = WINDOW_SUMS + Quantity::COUNT;
    pub(crate) const COLLECTIONS: usize = ANOMALIES + Anomaly::COUNT;
    pub(crate) const COUNT: usize = COLLECTIONS + Outcome::COUNT * Reason::COUNT;

    pub(crate) const fn collection(outcome: Outcome, reason: Reason) -> usize {
        COLLECTIONS.wrapping_add((outcome as usize).wrapping_mul(Reason::COUNT)).wrapping_add(reason as usize)
    }
}

/// The bits of [`word::GAVE`]; a quantity's bit is its own.
pub(crate) mod gave {
    use super::Quantity;

    pub(crate) const DISCARDED: u64 = 1 << Quantity::COUNT;
    pub(crate) const ACCEPTED_PER_POSITION: u64 = DISCARDED << 1;
    pub(crate) const DRAFT_PER_POSITION: u64 = DISCARDED << 2;
    pub(crate) const SEQUENCES: u64 = DISCARDED << 3;
    pub(crate) const TOKENS: u64 = DISCARDED << 4;
    pub(crate) const DRAFT_TIME: u64 = DISCARDED << 5;
    pub(crate) const VERIFY_TIME: u64 = DISCARDED << 6;
}

/// An engine's numbers, as the readers see them.
#[derive(Debug)]
pub(crate) struct Published {
    sequence: Sequence,
    words: [AtomicU64; word::COUNT],
    accepted_per_position: Box<[AtomicU64]>,
    draft_per_position: Box<[AtomicU64]>,
}

/// A copy of an engine's numbers, all of one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) words: [u64; word::COUNT],
    pub(crate) accepted_per_position: Box<[u64]>,
    pub(crate) draft_per_position: Box<[u64]>,
}

impl Published {
    pub(crate) fn new(positions: usize) -> Self {
        let published = Self {
            sequence: Sequence::default(),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            accepted_per_position: (0..positions).map(|_| AtomicU64::new(0)).collect(),
            draft_per_position: (0..positions).map(|_| AtomicU64::new(0)).collect(),
        };
        published.words[word::LAST_SAMPLE].store(NEVER, Ordering::Relaxed);
        published.words[word::IN_FLIGHT_SINCE].store(NEVER, Ordering::Relaxed);
        published
    }

    /// Opens the words for a change. The caller holds the engine's baton, so there is one writer.
    #[inline]
    pub(crate) fn write(&self) -> Writing<'_> {
        Writing { published: self, _open: self.sequence.open() }
    }

    /// A word, for whoever holds the engine's baton.
    #[inline]
    pub(crate) fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// Copies all words of one instant to `into`; false, and nothing is copied, if there was no quiet moment.
    pub(crate) fn read(&self, into: &mut Reading, scratch: &mut Reading) -> bool {
        let read = self.sequence.read(|| {
            copy(&self.words, &mut scratch.words);
            copy(&self.accepted_per_position, &mut scratch.accepted_per_position);
            copy(&self.draft_per_position, &mut scratch.draft_per_position);
        });
        if read {
            std::mem::swap(into, scratch);
        }
        read
    }

    /// A copy of one instant, for callers that may wait for a writer that is off its processor.
    pub(crate) fn read_within(&self, patience: Duration) -> Option<Reading> {
        let (mut reading, mut scratch) = (self.blank(), self.blank());
        let deadline = Instant::now().checked_add(patience);
        while !self.read(&mut reading, &mut scratch) {
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                return None;
            }
            std::thread::yield_now();
        }
        Some(reading)
    }

    /// All zeros, with room for as many positions.
    pub(crate) fn blank(&self) -> Reading {
        Reading {
            words: [0; word::COUNT],
            accepted_per_position: vec![0; self.accepted_per_position.len()].into(),
            draft_per_position: vec![0; self.draft_per_position.len()].into(),
        }
    }

    /// The per-position totals, for whoever holds the engine's baton.
    pub(crate) fn positions(&self) -> (&[AtomicU64], &[AtomicU64]) {
        (&self.accepted_per_position, &self.draft_per_position)
    }
}

fn copy(from: &[AtomicU64], to: &mut [u64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.load(Ordering::Relaxed);
    }
}

/// The words, open for a change; readers see it when this is dropped.
#[derive(Debug)]
pub(crate) struct Writing<'a> {
    published: &'a Published,
    _open: Open<'a>,
}

impl Writing<'_> {
    #[inline]
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.published.words[word].store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn add(&self, word: usize, amount: u64) {
        self.set(word, self.published.get(word).saturating_add(amount));
    }

    /// Adds what one step gave: see [`count`].
    #[inline]
    pub(crate) fn count(&self, word: usize, amount: u64) {
        count(&self.published.words[word], amount);
    }

    #[inline]
    pub(crate) fn raise(&self, word: usize, at_least: u64) {
        if self.published.get(word) < at_least {
            self.set(word, at_least);
        }
    }

    #[inline]
    pub(crate) fn set_bits(&self, word: usize, bits: u64) {
        self.set(word, self.published.get(word) | bits);
    }

    /// Adds what was counted per position; true if some lay beyond the positions that are exported.
    pub(crate) fn add_positions(&self, accepted: &[u64], draft: &[u64]) -> bool {
        add(&self.published.accepted_per_position, accepted) | add(&self.published.draft_per_position, draft)
    }
}

/// Adds what one step gave to a total of the one writer. A step's amounts are below 2^32, so that it would take thousands
/// of millions of the largest before a total began anew: the check for it is saved.
#[inline]
pub(crate) fn count(total: &AtomicU64, amount: u64) {
    total.store(total.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

fn add(totals: &[AtomicU64], amounts: &[u64]) -> bool {
    for (total, &amount) in totals.iter().zip(amounts) {
        if amount > 0 {
            total.store(total.load(Ordering::Relaxed).saturating_add(amount), Ordering::Relaxed);
        }
    }
    amounts.iter().skip(totals.len()).any(|&amount| amount > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_off_its_processor_is_waited_for_by_those_who_may() {
        let published = Published::new(0);
        let (mut reading, mut scratch) = (published.blank(), published.blank());
        let words = published.write();
        words.add(word::STEPS, 1);
        assert!(!published.read(&mut reading, &mut scratch));
        assert!(published.read_within(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| published.read_within(Duration::from_secs(60)));
            drop(words);
            let reading = waiting.join().unwrap().unwrap();
            assert_eq!(reading.words[word::STEPS], 1);
        });
    }
}
