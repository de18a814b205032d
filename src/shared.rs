//! What the layer, its filter, the handles and the instruments share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(feature = "otel")]
use std::time::Duration;

use crate::callsites::Callsites;
use crate::current;
use crate::engines::Engines;
use crate::open_steps::OpenSteps;
use crate::phases::{OpenPhases, Phase};
use crate::slot::{Slot, Visits};
use crate::ticks::Ticks;

/// The state of one layer.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) span_name: Box<str>,
    /// The names of the spans that are phases of a step.
    pub(crate) phase_names: [Box<str>; Phase::COUNT],
    /// The process counts: its rank is 0.
    pub(crate) counts: bool,
    pub(crate) ticks: Ticks,
    #[cfg(feature = "otel")]
    pub(crate) interval: Duration,
    /// The interval in ticks.
    pub(crate) interval_ticks: u64,
    pub(crate) callsites: Callsites,
    pub(crate) steps: OpenSteps,
    pub(crate) phases: OpenPhases,
    /// Some callsite of a phase has been registered.
    pub(crate) has_phases: AtomicBool,
    pub(crate) engines: Engines,
    /// The engine of steps that name none, once it is known; `u32::MAX` before.
    pub(crate) default_engine: AtomicU32,
    /// How many sources are attached or being attached. While there is none, nobody cares when a step is left.
    pub(crate) sources: AtomicU32,
    /// How many sources time steps. While there is none, no step and no phase is looked at for that.
    pub(crate) timed_sources: AtomicU32,
    /// How many copies are in flight. While there is none, no step has to look for one when it begins.
    pub(crate) flights: AtomicU32,
    /// How many copies have been started or tried, over all engines: each copy's generation.
    pub(crate) generation: AtomicU64,
    /// Steps that were dropped because their engine's name was refused, or there was no room for it.
    pub(crate) engine_refused: AtomicU64,
    /// Steps that were dropped because too many were open.
    pub(crate) open_steps_over_bound: AtomicU64,
    /// Collections become spans.
    #[cfg(feature = "otel-trace")]
    pub(crate) tracing: Option<crate::trace::Tracing>,
}

/// What a span of ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Step,
    Phase(Phase),
}

impl Shared {
    /// What tells this layer from others.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// What a span of this name is, if it is ours.
    pub(crate) fn kind_of(&self, name: &str) -> Option<Kind> {
        let [draft, verify] = &self.phase_names;
        if name == &*self.span_name {
            Some(Kind::Step)
        } else if name == &**draft {
            Some(Kind::Phase(Phase::Draft))
        } else if name == &**verify {
            Some(Kind::Phase(Phase::Verify))
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn has_flights(&self) -> bool {
        self.flights.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn has_timed_sources(&self) -> bool {
        self.timed_sources.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn has_sources(&self) -> bool {
        self.sources.load(Ordering::Relaxed) != 0
    }

    /// A step is entered, while some copy is in flight, some source times steps, or not for the first time.
    #[inline(never)]
    pub(crate) fn entered(&self, slot: &Slot, before: Visits) {
        if let Some(engine) = self.engines.get(slot.engine.load(Ordering::Relaxed)) {
            engine.entered(slot, before, self);
        }
    }

    /// A step is exited, while there are sources.
    #[inline]
    pub(crate) fn exited(&self, slot: &Slot) {
        // The generation is stored first: whoever sees that nobody is inside sees when the step was left.
        slot.leave_at(self.generation.load(Ordering::SeqCst));
        if let Some(now) = slot.exit_and_end(|| self.ticks.now())
            && let Some(engine) = self.engines.get(slot.engine.load(Ordering::Relaxed))
        {
            engine.left(slot, now, self);
        }
    }
}

/// What the callbacks do with a span that is no step.
impl Shared {
    #[inline(never)]
    pub(crate) fn enter_phase(&self, id: u64) {
        let Some(slot) = self.phases.find(id) else { return current::forget() };
        slot.entered(self.ticks.now());
        current::enter_phase(self.address(), slot.step());
        if self.has_timed_sources() {
            self.mark_phase(slot.phase(), id, slot.step(), true);
        }
    }

    #[inline(never)]
    pub(crate) fn exit_phase(&self, id: u64) {
        if let Some(slot) = self.phases.find(id) {
            slot.exited(self.ticks.now());
            current::exit_phase(self.address(), slot.step());
            if self.has_timed_sources() {
                self.mark_phase(slot.phase(), id, slot.step(), false);
            }
        }
    }

    #[inline(never)]
    pub(crate) fn close_phase(&self, id: u64) {
        if let Some(slot) = self.phases.find(id) {
            let (step, phase, ticks) = slot.close();
            if let Some((_, step)) = self.steps.find(step) {
                step.add_phase(phase, ticks);
            }
        }
    }
}
