//! A device whose copies are refused, fail, are late, and end for ever, each now and then.

use std::sync::{Arc, Mutex, MutexGuard};

use tracing_spec_decode::source::{Busy, CounterSource, Counters, Dead, Failed, Layout, Snapshot, SourceError};

use super::rng::Rng;

#[derive(Clone)]
pub struct Device(Arc<Mutex<State>>);

struct State {
    now: Counters,
    taken: Counters,
    rng: Rng,
    /// It counts its drafts as well.
    whole: bool,
    well: bool,
    dead: bool,
}

impl Device {
    pub fn new(whole: bool, rng: Rng) -> Self {
        let (now, taken) = (Counters::default(), Counters::default());
        Self(Arc::new(Mutex::new(State { now, taken, rng, whole, well: true, dead: false })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// What the engine's stream does: one sequence's draft was verified.
    pub fn count(&self, drafted: u64, accepted: u64) {
        let now = &mut self.state().now;
        now.drafts += 1;
        now.draft_tokens += drafted;
        now.accepted += accepted;
        now.emitted += accepted + 1;
    }

    /// From here on it fails at random, or it doesn't.
    pub fn be_well(&self, well: bool) {
        self.state().well = well;
    }

    pub fn is_dead(&self) -> bool {
        self.state().dead
    }

    pub fn source(&self) -> Source {
        Source(self.clone())
    }
}

pub struct Source(Device);

impl CounterSource for Source {
    fn layout(&self) -> Layout {
        let layout = Layout::accepted().with_emitted();
        if self.0.state().whole { layout.with_drafts().with_draft_tokens() } else { layout }
    }

    fn start(&mut self) -> Result<(), SourceError> {
        let state = &mut *self.0.state();
        match if state.well { usize::MAX } else { state.rng.below(2_048) } {
            0..64 => Err(SourceError::Busy(Busy::Capturing)),
            64..96 => Err(SourceError::Failed(Failed::Driver(700))),
            _ => {
                state.taken = state.now.clone();
                Ok(())
            }
        }
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        let state = &mut *self.0.state();
        match if state.well { usize::MAX } else { state.rng.below(2_048) } {
            0..512 => Ok(Snapshot::Pending),
            512..544 => Err(SourceError::Busy(Busy::Contended)),
            544..560 => Err(SourceError::Failed(Failed::Timeout)),
            560 => {
                state.dead = true;
                Err(SourceError::Dead(Dead::DeviceLost))
            }
            _ => {
                counters.clone_from(&state.taken);
                Ok(Snapshot::Landed)
            }
        }
    }
}
