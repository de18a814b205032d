//! The seqlock: one writer at a time, any number of readers, nobody waits.

use crate::sync::{AtomicU64, Ordering, fence, spin_loop};

/// Odd while the words that it guards change.
#[derive(Debug, Default)]
pub(crate) struct Sequence(AtomicU64);

impl Sequence {
    /// How often a reader tries: a writer that is off its processor is not waited for.
    const TRIES: usize = 128;

    /// Opens the words for a change. The caller sees to it that there is one writer at a time.
    #[inline]
    pub(crate) fn open(&self) -> Open<'_> {
        let sequence = self.0.load(Ordering::Relaxed);
        self.0.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        Open { sequence: self, closes_with: sequence.wrapping_add(2) }
    }

    /// Lets `copy` copy the words until it has done so in a quiet moment; false if there was none.
    #[inline]
    pub(crate) fn read(&self, mut copy: impl FnMut()) -> bool {
        for _ in 0..Self::TRIES {
            let before = self.0.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                copy();
                fence(Ordering::Acquire);
                if self.0.load(Ordering::Relaxed) == before {
                    return true;
                }
            }
            spin_loop();
        }
        false
    }
}

/// The words are open; readers see the change when this is dropped.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    sequence: &'a Sequence,
    closes_with: u64,
}

impl Drop for Open<'_> {
    #[inline]
    fn drop(&mut self) {
        self.sequence.0.store(self.closes_with, Ordering::Release);
    }
}
