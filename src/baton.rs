//! Who accounts for an engine: one thread at a time, and nobody waits for it.
//!
//! A thread that closes a step takes the baton and does the accounting. One that finds it taken leaves its step on a
//! list, in the same word, and goes on; the holder can't let go of the baton while something is on the list. So a step
//! is never forgotten, and a thread's own step is the most that it ever waits for.

use crate::sync::{AtomicU64, Ordering};

/// One word: who holds it, what was left for the holder, and whether the source shall be detached.
#[derive(Debug, Default)]
pub(crate) struct Baton(AtomicU64);

const HELD: u64 = 1;
const DETACH: u64 = 1 << 1;
const LIST_SHIFT: u32 = 2;

/// What others left while the baton was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The newest step of the list, as an index of the table of open steps. The others hang on it, newest first.
    pub(crate) newest: Option<u32>,
    /// The source's guard was dropped.
    pub(crate) detach: bool,
}

impl Baton {
    /// Takes the baton if nobody holds it.
    #[inline]
    pub(crate) fn try_take(&self) -> bool {
        self.0.compare_exchange(0, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the baton, or puts the step `index` on the holder's list. `link` hangs the step before on it.
    pub(crate) fn take_or_leave(&self, index: u32, link: impl Fn(Option<u32>)) -> bool {
        let mut current = self.0.load(Ordering::Relaxed);
        loop {
            let next = if current == 0 {
                HELD
            } else {
                link(newest(current));
                (current & (HELD | DETACH)) | u64::from(index).wrapping_add(1) << LIST_SHIFT
            };
            match self.0.compare_exchange_weak(current, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return current == 0,
                Err(now) => current = now,
            }
        }
    }

    /// Takes the baton, or asks the holder to detach the source.
    pub(crate) fn take_or_ask_to_detach(&self) -> bool {
        let mut current = self.0.load(Ordering::Relaxed);
        loop {
            let next = if current == 0 { HELD } else { current | DETACH };
            match self.0.compare_exchange_weak(current, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return current == 0,
                Err(now) => current = now,
            }
        }
    }

    /// Lets go of the baton, or, if something was left meanwhile, keeps it and says what.
    #[inline]
    pub(crate) fn pass(&self) -> Option<Left> {
        if self.0.compare_exchange(HELD, 0, Ordering::Release, Ordering::Relaxed).is_ok() {
            return None;
        }
        let left = self.0.swap(HELD, Ordering::Acquire);
        Some(Left { newest: newest(left), detach: left & DETACH != 0 })
    }
}

fn newest(word: u64) -> Option<u32> {
    u32::try_from(word >> LIST_SHIFT).ok()?.checked_sub(1)
}
