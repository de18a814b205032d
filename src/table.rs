//! A bounded table of open spans, found by span id: written by whichever thread has the span, and never waited for.
//!
//! It is used in place of the span's extensions, which would cost a box, a type map and a lock for every span. A slot
//! is claimed when the span is made, and its key is retired when the span closes, in every case: span ids come back.

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// The key of a slot that nobody uses.
pub(crate) const FREE: u64 = 0;
/// The key of a slot that is being filled in by the thread that makes the span.
pub(crate) const CLAIMED: u64 = u64::MAX;
/// Keys from here on are no span's.
pub(crate) const RESERVED: u64 = u64::MAX - 1;

/// A slot of a table.
pub(crate) trait Keyed {
    /// The id of its span, or one of the reserved keys.
    fn key(&self) -> &AtomicU64;
}

/// The table: slots for spans, and behind them slots that are its user's own affair.
#[derive(Debug)]
pub(crate) struct Table<S> {
    slots: Box<[S]>,
    bound: usize,
    /// How far from its home a span has ever been put.
    reach: AtomicUsize,
}

impl<S: Keyed> Table<S> {
    /// A table for `bound` spans, with `more` slots behind them.
    pub(crate) fn new(bound: usize, more: usize, vacant: impl Fn() -> S) -> Self {
        let slots = (0..bound.saturating_add(more)).map(|_| vacant()).collect();
        Self { slots, bound, reach: AtomicUsize::new(0) }
    }

    /// All slots, those behind the spans' included.
    pub(crate) fn slots(&self) -> &[S] {
        &self.slots
    }

    /// How many spans there is room for.
    pub(crate) fn bound(&self) -> usize {
        self.bound
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&S> {
        self.slots.get(index as usize)
    }

    /// Claims a slot for the span with this id; `None` if there is no room. The key is to be stored last.
    #[inline]
    pub(crate) fn claim(&self, id: u64) -> Option<&S> {
        if id >= RESERVED {
            return None;
        }
        let home = self.home(id);
        let slot = self.slots.get(home)?;
        if is_claimed_now(slot) { Some(slot) } else { self.claim_beyond(home) }
    }

    #[cold]
    fn claim_beyond(&self, home: usize) -> Option<&S> {
        let mut index = home;
        for distance in 1..self.bound {
            index = self.after(index);
            let slot = self.slots.get(index)?;
            if is_claimed_now(slot) {
                self.reach.fetch_max(distance, Ordering::Relaxed);
                return Some(slot);
            }
        }
        None
    }

    /// Where the span with this id is.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<(u32, &S)> {
        let home = self.home(id);
        let slot = self.slots.get(home)?;
        if slot.key().load(Ordering::Acquire) == id {
            Some((home as u32, slot))
        } else if self.reach.load(Ordering::Relaxed) == 0 {
            None
        } else {
            self.find_beyond(home, id)
        }
    }

    #[cold]
    fn find_beyond(&self, home: usize, id: u64) -> Option<(u32, &S)> {
        let mut index = home;
        for _ in 0..self.reach.load(Ordering::Relaxed) {
            index = self.after(index);
            let slot = self.slots.get(index)?;
            if slot.key().load(Ordering::Acquire) == id {
                return Some((index as u32, slot));
            }
        }
        None
    }

    #[inline]
    fn home(&self, id: u64) -> usize {
        // Span ids are dense in their low bits: spread them, then scale to the table.
        let spread = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (u128::from(spread).wrapping_mul(self.bound as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        let next = index.wrapping_add(1);
        if next == self.bound { 0 } else { next }
    }
}

#[inline]
fn is_claimed_now(slot: &impl Keyed) -> bool {
    slot.key().load(Ordering::Relaxed) == FREE
        && slot.key().compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
}
