//! The phases of open steps: spans inside a step whose time is told apart from the step's own.
//!
//! A phase that is a child of its step keeps the step open, so what it took is known, and added to the step, before the
//! step closes. One that is not its child and ends later is not counted.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::{FREE, Keyed, Table};
use crate::ticks::NEVER;

/// The span in which drafts are made, where the builder gives no other name.
pub(crate) const DRAFT_SPAN_NAME: &str = "spec_decode_draft";
/// The span in which drafts are verified.
pub(crate) const VERIFY_SPAN_NAME: &str = "spec_decode_verify";

/// What an engine does inside a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Draft,
    Verify,
}

impl Phase {
    pub(crate) const COUNT: usize = 2;
}

/// One phase.
#[derive(Debug)]
pub(crate) struct Slot {
    key: AtomicU64,
    /// The first enter.
    started: AtomicU64,
    /// The last exit.
    left: AtomicU64,
    /// The span id of its step.
    step: AtomicU64,
    phase: AtomicU32,
}

impl Keyed for Slot {
    fn key(&self) -> &AtomicU64 {
        &self.key
    }
}

impl Slot {
    fn vacant() -> Self {
        Self {
            key: AtomicU64::new(FREE),
            started: AtomicU64::new(NEVER),
            left: AtomicU64::new(NEVER),
            step: AtomicU64::new(0),
            phase: AtomicU32::new(0),
        }
    }

    /// The span id of its step.
    pub(crate) fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    pub(crate) fn entered(&self, now: u64) {
        if self.started.load(Ordering::Relaxed) == NEVER {
            self.started.store(now, Ordering::Relaxed);
        }
    }

    pub(crate) fn exited(&self, now: u64) {
        self.left.store(now, Ordering::Relaxed);
    }

    pub(crate) fn phase(&self) -> Phase {
        let is_draft = self.phase.load(Ordering::Relaxed) == Phase::Draft as u32;
        if is_draft { Phase::Draft } else { Phase::Verify }
    }

    /// The span has closed: the span id of its step, and what it took.
    pub(crate) fn close(&self) -> (u64, Phase, u64) {
        let phase = self.phase();
        let (started, left) = (self.started.load(Ordering::Relaxed), self.left.load(Ordering::Relaxed));
        let ticks = if left == NEVER { 0 } else { left.saturating_sub(started) };
        let step = self.step();
        self.key.store(FREE, Ordering::Release);
        (step, phase, ticks)
    }
}

/// The phases that are open. One for which there is no room is not timed.
#[derive(Debug)]
pub(crate) struct OpenPhases(Table<Slot>);

impl OpenPhases {
    pub(crate) fn new(bound: usize) -> Self {
        Self(Table::new(bound, 0, Slot::vacant))
    }

    /// A span of the step with this span id has been made.
    pub(crate) fn open(&self, id: u64, phase: Phase, step: u64) {
        if let Some(slot) = self.0.claim(id) {
            slot.started.store(NEVER, Ordering::Relaxed);
            slot.left.store(NEVER, Ordering::Relaxed);
            slot.step.store(step, Ordering::Relaxed);
            slot.phase.store(phase as u32, Ordering::Relaxed);
            slot.key.store(id, Ordering::Release);
        }
    }

    pub(crate) fn find(&self, id: u64) -> Option<&Slot> {
        self.0.find(id).map(|(_, slot)| slot)
    }
}
