//! The steps that are open, and those that are closed and left to the holder of their engine's baton.

use crate::slot::{LEFT, Slot};
use crate::sync::{AtomicUsize, Ordering};
use crate::table::{CLAIMED, FREE, Table};

/// How many slots for steps left to a baton's holder there are beside each slot for an open step. They keep closed
/// steps out of the way of open ones while the holder is off its processor.
const SPARES: usize = 4;

/// The table.
#[derive(Debug)]
pub(crate) struct OpenSteps {
    /// The slots of open steps, then those of steps that were left.
    table: Table<Slot>,
    /// Spare slots up to here have ever been used.
    spares_used: AtomicUsize,
}

impl OpenSteps {
    pub(crate) fn new(bound: usize) -> Self {
        let table = Table::new(bound, bound.saturating_mul(SPARES), Slot::vacant);
        Self { table, spares_used: AtomicUsize::new(0) }
    }

    /// Claims a slot for the step with this span id; `None` if as many steps are open as may be.
    #[inline]
    pub(crate) fn claim(&self, id: u64) -> Option<&Slot> {
        let slot = self.table.claim(id)?;
        slot.reset();
        Some(slot)
    }

    /// Where the step with this span id is.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<(u32, &Slot)> {
        self.table.find(id)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Slot> {
        self.table.get(index)
    }

    /// Takes a closed step out of the way of open ones, to be left to the holder of its engine's baton.
    pub(crate) fn set_aside(&self, index: u32) -> u32 {
        let Some(slot) = self.get(index) else { return index };
        for (spare, number) in self.table.slots().iter().skip(self.table.bound()).zip(1..) {
            if spare.key.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.spares_used.fetch_max(number, Ordering::Relaxed);
                spare.copy_from(slot);
                spare.key.store(LEFT, Ordering::Release);
                slot.key.store(FREE, Ordering::Release);
                return self.table.bound().wrapping_add(number).wrapping_sub(1) as u32;
            }
        }
        slot.key.store(LEFT, Ordering::Release);
        index
    }

    /// Hangs the step that was left before on this one.
    pub(crate) fn link(&self, index: u32, before: Option<u32>) {
        if let Some(slot) = self.get(index) {
            slot.next.store(before.map_or(0, |before| before.wrapping_add(1)), Ordering::Relaxed);
        }
    }

    /// The steps that were left, oldest first.
    pub(crate) fn left(&self, newest: Option<u32>) -> Left<'_> {
        let mut oldest = None;
        let mut next = newest;
        while let Some(index) = next {
            let Some(slot) = self.get(index) else { break };
            next = slot.next.load(Ordering::Relaxed).checked_sub(1);
            self.link(index, oldest);
            oldest = Some(index);
        }
        Left { steps: self, next: oldest }
    }

    /// The steps of an engine: those open, and those left to the holder of its baton.
    pub(crate) fn of_engine(&self, engine: u32) -> impl Iterator<Item = &Slot> {
        let slots = self.table.slots();
        let bound = self.table.bound();
        // Asked only when the others have been looked at: a step that is set aside meanwhile is found where it is then.
        let used = std::iter::once_with(|| self.spares_used.load(Ordering::Relaxed));
        let spares = used.flat_map(move |used| slots.iter().skip(bound).take(used));
        slots.iter().take(bound).chain(spares).filter(move |slot| {
            let key = slot.key.load(Ordering::Acquire);
            key != FREE && key != CLAIMED && slot.engine.load(Ordering::Relaxed) == engine
        })
    }

    /// How many steps of an engine are open.
    pub(crate) fn count_of_engine(&self, engine: u32) -> usize {
        self.of_engine(engine).filter(|slot| !slot.is_left()).count()
    }
}

/// Iterates over steps that were left, oldest first.
#[derive(Debug)]
pub(crate) struct Left<'a> {
    steps: &'a OpenSteps,
    next: Option<u32>,
}

impl Iterator for Left<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let index = self.next?;
        self.next = self.steps.get(index)?.next.load(Ordering::Relaxed).checked_sub(1);
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::NewStep;

    #[test]
    fn a_step_that_is_set_aside_while_the_steps_are_looked_at_is_found() {
        let steps = OpenSteps::new(8);
        for id in 1..=2 {
            let slot = steps.claim(id).expect("there is room");
            NewStep::new(slot, id).open(0, 0, 0);
        }
        let mut looked_at = steps.of_engine(0);
        let first = looked_at.next().expect("two are open").id();
        let other = [1, 2].into_iter().filter(|id| *id != first).find_map(|id| steps.find(id));
        steps.set_aside(other.expect("the second").0);
        assert_eq!(looked_at.count(), 1, "the second, where it was put");
    }
}
