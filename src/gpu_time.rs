//! A step's time on the device: marks in the engine's stream around a step that will be sampled, and around its phases.
//!
//! A step is timed if it begins when a copy is due, with no other under way, and its own end is what starts that copy.
//! One that begins later, in between, shows: at its end, since that tries to start the copy, or by being under way when
//! the copy starts. Whatever could make the time another one drops it: no time is better than a wrong one.

use std::sync::atomic::Ordering;

use crate::engine::{Engine, Holding};
use crate::marks::{GpuTimes, Mark, Part};
use crate::phases::Phase;
use crate::shared::Shared;
use crate::slot::Slot;

/// Where a phase of the step that is being timed stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    #[default]
    Unbegun,
    Inside(u64),
    Left(u64),
    /// It has no time: a mark failed, or the step has several such spans, and what lies between is neither's.
    Void,
}

/// The phases of the step that is being timed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PhasesInStep([Stand; Phase::COUNT]);

impl PhasesInStep {
    /// The mark that an enter or an exit of this phase's span `id` asks for, if any.
    fn mark(&mut self, phase: Phase, id: u64, is_enter: bool) -> Option<Mark> {
        let stand = &mut self.0[phase as usize];
        let (next, mark) = match (*stand, is_enter) {
            (Stand::Unbegun, true) => (Stand::Inside(id), Some(Mark::Begin(phase.into()))),
            (Stand::Inside(own) | Stand::Left(own), true) if own == id => (Stand::Inside(id), None),
            (Stand::Inside(own) | Stand::Left(own), false) if own == id => {
                (Stand::Left(id), Some(Mark::End(phase.into())))
            }
            _ => (Stand::Void, None),
        };
        *stand = next;
        mark
    }

    fn void(&mut self, phase: Phase) {
        self.0[phase as usize] = Stand::Void;
    }

    /// The times of the phases that were begun once and are over.
    pub(crate) fn only_whole(self, times: GpuTimes) -> GpuTimes {
        let [draft, verify] = self.0.map(|stand| matches!(stand, Stand::Left(_)));
        GpuTimes { draft: times.draft.filter(|_| draft), verify: times.verify.filter(|_| verify), ..times }
    }
}

impl Engine {
    /// A step begins, while some source times steps: is it the one to be timed?
    #[inline(never)]
    pub(crate) fn begin_timing(&self, slot: &Slot, shared: &Shared) {
        let due = self.hot.due.load(Ordering::Relaxed);
        if slot.started() >= due
            && let Some(holding) = self.try_hold(shared)
        {
            holding.begin_timing(slot);
        }
    }

    /// A phase of a step is entered or exited, while some source times steps.
    fn mark_phase(&self, phase: Phase, id: u64, step: u64, is_enter: bool, shared: &Shared) {
        if self.hot.timed.load(Ordering::Relaxed) != step {
            return;
        }
        let marked = self.try_hold(shared).is_some_and(|holding| {
            let mut books = holding.engine.books();
            let attachment = books.as_mut().and_then(|books| books.attachment.as_mut());
            attachment.is_some_and(|attachment| {
                if let Some(mark) = attachment.phases.mark(phase, id, is_enter)
                    && !attachment.mark(mark)
                {
                    attachment.phases.void(phase);
                }
                true
            })
        });
        if !marked {
            self.hot.timed.store(0, Ordering::SeqCst);
        }
    }
}

impl Holding<'_> {
    #[cold]
    fn begin_timing(&self, slot: &Slot) {
        let Some(mut books) = self.engine.books() else { return };
        let Some(attachment) = books.attachment.as_mut().filter(|attachment| attachment.times_steps) else { return };
        // Asked once more with the baton: a mark made behind a copy in flight would move what belongs to that.
        let is_due = slot.started() >= attachment.collector.due();
        if !is_due || self.is_another_under_way(slot) {
            return;
        }
        attachment.phases = PhasesInStep::default();
        if attachment.mark(Mark::Begin(Part::Step)) {
            self.engine.hot.timed.store(slot.id(), Ordering::SeqCst);
        }
    }
}

impl Shared {
    /// A phase's span `id` is entered or exited; `step` is that of its step.
    #[cold]
    pub(crate) fn mark_phase(&self, phase: Phase, id: u64, step: u64, is_enter: bool) {
        if let Some((_, slot)) = self.steps.find(step)
            && let Some(engine) = self.engines.get(slot.engine.load(Ordering::Relaxed))
        {
            engine.mark_phase(phase, id, step, is_enter, self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::source::{CounterSource, Counters, Layout, Snapshot, SourceError};

    struct Source;

    impl CounterSource for Source {
        fn layout(&self) -> Layout {
            Layout::accepted()
        }

        fn start(&mut self) -> Result<(), SourceError> {
            Ok(())
        }

        fn poll(&mut self, _: &mut Counters) -> Result<Snapshot, SourceError> {
            Ok(Snapshot::Landed)
        }

        fn times_steps(&self) -> bool {
            true
        }
    }

    #[test]
    fn steps_are_looked_at_while_a_source_times_them_and_no_longer() {
        let (layer, handle) = crate::builder().build().unwrap();
        let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        for _ in 0..2 {
            let attached = [handle.attach("0", Source).unwrap(), handle.attach("1", Source).unwrap()];
            assert!(handle.attach("0", Source).is_err());
            assert!(handle.shared.has_timed_sources());
            drop(attached);
            assert!(!handle.shared.has_timed_sources());
        }
    }

    const TIMES: GpuTimes = GpuTimes {
        step: Duration::from_millis(9),
        draft: Some(Duration::from_millis(1)),
        verify: Some(Duration::from_millis(2)),
    };

    #[test]
    fn a_phase_that_comes_twice_or_does_not_end_has_no_time() {
        let mut phases = PhasesInStep::default();
        assert_eq!(phases.only_whole(TIMES), GpuTimes { draft: None, verify: None, ..TIMES });
        assert_eq!(phases.mark(Phase::Draft, 7, true), Some(Mark::Begin(Part::Draft)));
        assert_eq!(phases.mark(Phase::Draft, 7, false), Some(Mark::End(Part::Draft)));
        assert_eq!(phases.only_whole(TIMES), GpuTimes { verify: None, ..TIMES });
        // Entered again it goes on.
        assert_eq!(phases.mark(Phase::Draft, 7, true), None);
        assert_eq!(phases.only_whole(TIMES).draft, None);
        assert_eq!(phases.mark(Phase::Draft, 7, false), Some(Mark::End(Part::Draft)));
        assert_eq!(phases.only_whole(TIMES).draft, TIMES.draft);
        assert_eq!(phases.mark(Phase::Draft, 8, true), None);
        assert_eq!(phases.mark(Phase::Draft, 8, false), None);
        assert_eq!(phases.only_whole(TIMES).draft, None);
    }
}
