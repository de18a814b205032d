//! When a copy starts, when it is looked at, and what follows from how it ends. Pure: knows no tracing, no
//! OpenTelemetry, no device, and no clock but the ticks it is given.

use crate::ticks::NEVER;

/// The collector of one attached source: at most one copy in flight, at most one started per interval.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    interval: u64,
    phase: Phase,
    /// From this tick on a copy may start.
    due: u64,
    /// Failures in a row.
    failures: u32,
    generation: u64,
    /// The generation of the last copy that was published.
    last_resolved: u64,
    /// The generation of the last copy that failed.
    last_failed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    InFlight(Flight),
    /// The source will never answer again.
    Dead,
}

/// A copy in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flight {
    pub(crate) generation: u64,
    pub(crate) started: u64,
    /// From this tick on it may be looked at.
    poll_at: u64,
    /// It has landed, and waits for the steps that it belongs to.
    pub(crate) landed: Option<u64>,
}

impl Collector {
    /// Backing off ends at 2^6 = 64 intervals.
    const MOST_DOUBLINGS: u32 = 6;

    /// A source that was attached `now`: its zero has just been read, so the first copy is due an interval later.
    pub(crate) fn new(interval: u64, now: u64) -> Self {
        Self {
            interval,
            phase: Phase::Idle,
            due: now.saturating_add(interval),
            failures: 0,
            generation: 0,
            last_resolved: 0,
            last_failed: None,
        }
    }

    /// From which tick on a copy may start; never while one is in flight.
    pub(crate) fn due(&self) -> u64 {
        match self.phase {
            Phase::Idle => self.due,
            Phase::InFlight(_) | Phase::Dead => NEVER,
        }
    }

    /// From which tick on the copy in flight may be looked at; never if there is none.
    pub(crate) fn poll_at(&self) -> u64 {
        self.flight().map_or(NEVER, |flight| flight.poll_at)
    }

    pub(crate) fn flight(&self) -> Option<Flight> {
        match self.phase {
            Phase::InFlight(flight) => Some(flight),
            Phase::Idle | Phase::Dead => None,
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.phase == Phase::Dead
    }

    pub(crate) fn is_backing_off(&self) -> bool {
        self.failures > 0
    }

    /// The generation of the last copy that was published. It took all that was in those before it.
    pub(crate) fn last_resolved(&self) -> u64 {
        self.last_resolved
    }

    /// Whether the copy of this generation is the last that has failed.
    pub(crate) fn has_failed(&self, generation: u64) -> bool {
        self.last_failed == Some(generation)
    }

    /// The next copy will be of this generation, if it starts.
    pub(crate) fn prepare(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// The copy that was prepared has started.
    pub(crate) fn started(&mut self, now: u64) {
        let flight = Flight { generation: self.generation, started: now, poll_at: 0, landed: None };
        self.phase = Phase::InFlight(flight);
    }

    /// It has been looked at and is on its way still. One older than an interval is next looked at an interval later:
    /// a device that hangs must not cost every step.
    pub(crate) fn pending(&mut self, now: u64) {
        if let Phase::InFlight(flight) = &mut self.phase
            && now.saturating_sub(flight.started) >= self.interval
        {
            flight.poll_at = now.saturating_add(self.interval);
        }
    }

    /// It has landed, but a step that it belongs to is not closed yet.
    pub(crate) fn landed(&mut self, now: u64) {
        if let Phase::InFlight(flight) = &mut self.phase {
            flight.poll_at = 0;
            flight.landed = flight.landed.or(Some(now));
        }
    }

    /// Whether a copy that has landed has waited for its steps as long as it may.
    pub(crate) fn has_waited(&self, now: u64) -> bool {
        let landed = self.flight().and_then(|flight| flight.landed);
        landed.is_some_and(|landed| now.saturating_sub(landed) >= self.interval)
    }

    /// It was published: the interval counts from here, not from the start.
    pub(crate) fn resolved(&mut self, now: u64) {
        self.last_resolved = self.flight().map_or(self.last_resolved, |flight| flight.generation);
        self.phase = Phase::Idle;
        self.failures = 0;
        self.due = now.saturating_add(self.interval);
    }

    /// It was void: the interval counts from where it did before.
    pub(crate) fn voided(&mut self) {
        self.phase = Phase::Idle;
    }

    /// It failed, or could not start: the next is due after one interval, then two, up to 64.
    pub(crate) fn failed(&mut self, now: u64) {
        self.phase = Phase::Idle;
        self.last_failed = Some(self.generation);
        let wait = self.interval.saturating_mul(1 << self.failures.min(Self::MOST_DOUBLINGS));
        self.due = now.saturating_add(wait);
        self.failures = self.failures.saturating_add(1);
    }

    /// The source is dead.
    pub(crate) fn died(&mut self) {
        self.phase = Phase::Dead;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_counts_from_the_resolve_and_its_end_is_included() {
        let mut collector = Collector::new(50, 0);
        assert_eq!(collector.due(), 50);
        collector.prepare(1);
        collector.started(51);
        assert_eq!((collector.due(), collector.poll_at()), (NEVER, 0));
        collector.resolved(52);
        assert_eq!((collector.due(), collector.poll_at()), (102, NEVER));
    }

    #[test]
    fn a_void_copy_does_not_rearm_the_interval() {
        let mut collector = Collector::new(50, 0);
        collector.prepare(1);
        collector.started(60);
        collector.voided();
        assert_eq!(collector.due(), 50);
    }

    #[test]
    fn failures_double_the_wait_up_to_64_intervals_and_success_ends_it() {
        let mut collector = Collector::new(10, 0);
        let mut now = 0_u64;
        for wait in [10, 20, 40, 80, 160, 320, 640, 640] {
            collector.failed(now);
            assert_eq!(collector.due(), now.saturating_add(wait));
            now = collector.due();
        }
        collector.prepare(1);
        collector.started(now);
        collector.resolved(now);
        assert_eq!(collector.due(), now.saturating_add(10));
        collector.failed(now);
        assert_eq!(collector.due(), now.saturating_add(10));
    }

    #[test]
    fn a_copy_older_than_an_interval_is_looked_at_once_per_interval() {
        let mut collector = Collector::new(10, 0);
        collector.prepare(1);
        collector.started(20);
        collector.pending(29);
        assert_eq!(collector.poll_at(), 0);
        collector.pending(30);
        assert_eq!(collector.poll_at(), 40);
    }

    #[test]
    fn a_copy_that_has_landed_waits_an_interval_for_its_steps() {
        let mut collector = Collector::new(10, 0);
        collector.prepare(1);
        collector.started(20);
        collector.pending(35);
        assert!(!collector.has_waited(1_000), "it has not landed");
        collector.landed(40);
        collector.landed(45);
        assert_eq!(collector.poll_at(), 0, "the next step looks whether its own have closed");
        assert!(!collector.has_waited(49));
        assert!(collector.has_waited(50), "it counts from when it was first seen to have landed");
    }

    #[test]
    fn a_dead_source_is_never_due() {
        let mut collector = Collector::new(10, 0);
        assert!(!collector.is_dead());
        collector.died();
        assert!(collector.is_dead());
        assert_eq!((collector.due(), collector.poll_at()), (NEVER, NEVER));
    }
}
