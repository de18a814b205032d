//! Sources that panic in any call with anything, change their mind about their layout, or swap the boxes that they were
//! given: the engine's steps go on, and what was counted stays right.
#![allow(missing_docs)]

mod support;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Exported, Stack, anomaly, of_engine, set_default};
use tracing_spec_decode::source::{Busy, CounterSource, Counters, Dead, Failed, Layout, Mark, Snapshot, SourceError};
use tracing_spec_decode::{AttachError, SourceState, builder, step_span};

/// What is thrown panics once more when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("the payload's drop"));
    }
}

/// Panics in one of its calls, once it is armed.
struct Panics {
    call: &'static str,
    armed: Arc<AtomicU32>,
}

impl Panics {
    fn at(&self, call: &str) {
        if self.call == call && self.armed.load(Ordering::Relaxed) > 0 {
            std::panic::resume_unwind(Box::new(Bomb));
        }
    }
}

impl CounterSource for Panics {
    fn layout(&self) -> Layout {
        self.at("layout");
        Layout::accepted()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        self.at("start");
        Ok(())
    }

    fn poll(&mut self, _: &mut Counters) -> Result<Snapshot, SourceError> {
        self.at("poll");
        Ok(Snapshot::Landed)
    }

    fn is_on_host(&self) -> bool {
        self.at("is_on_host");
        false
    }

    fn times_steps(&self) -> bool {
        self.at("times_steps");
        true
    }

    fn mark(&mut self, _: Mark) -> Result<(), SourceError> {
        self.at("mark");
        Ok(())
    }

    fn wait(&mut self, counters: &mut Counters, _: Duration) -> Result<Snapshot, SourceError> {
        self.at("wait");
        self.poll(counters)
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.at("drop");
    }
}

#[test]
fn a_panic_in_a_step_never_reaches_the_engine() {
    for call in ["start", "poll", "mark", "drop"] {
        let (handle, _default) = set_default(builder().with_interval(Duration::ZERO));
        let armed = Arc::new(AtomicU32::new(0));
        let attached = handle.attach("0", Panics { call, armed: Arc::clone(&armed) }).unwrap();
        armed.store(1, Ordering::Relaxed);
        for _ in 0..5 {
            step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {});
        }
        assert_eq!(handle.status("0").steps, 5, "{call}");
        let dead = handle.status("0").source == SourceState::Dead;
        assert_eq!(dead, ["start", "poll"].contains(&call), "{call}");
        drop(attached);
        armed.store(0, Ordering::Relaxed);
        assert!(handle.attach("0", Panics { call, armed }).is_ok(), "after a panic in {call} the place is free");
    }
}

#[test]
fn a_panic_at_attach_is_an_error() {
    let (_, handle) = builder().build::<tracing_subscriber::Registry>().unwrap();
    for call in ["layout", "is_on_host", "times_steps", "start", "wait", "poll"] {
        let refused = handle.attach("0", Panics { call, armed: Arc::new(AtomicU32::new(1)) }).unwrap_err();
        assert_eq!(refused, AttachError::Source(SourceError::Dead(Dead::Panicked)), "{call}");
    }
}

#[test]
fn a_layout_with_more_positions_than_there_can_be_is_cut() {
    struct Endless(usize, u64);
    impl CounterSource for Endless {
        fn layout(&self) -> Layout {
            Layout::accepted().with_accepted_positions(self.0).with_draft_positions(self.0)
        }
        fn start(&mut self) -> Result<(), SourceError> {
            Ok(())
        }
        fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
            self.1 += 1;
            counters.accepted = self.1;
            *counters.accepted_per_position.last_mut().unwrap() = self.1;
            Ok(Snapshot::Landed)
        }
    }
    for positions in [usize::MAX, 1 << 56, 1 << 30] {
        let stack = Stack::new();
        let _attached = stack.handle.attach("0", Endless(positions, 0)).unwrap();
        drop(step_span!(num_spec_tokens = 4, num_drafts = 1));
        stack.flush();
        let points = stack.collect();
        assert_eq!((points[&of_engine("accepted_tokens")], points[&anomaly("position_over_bound")]), (1.0, 1.0));
    }
}

/// A source whose counters the test sets, boxes and all; it has a second layout for who asks twice.
#[derive(Clone, Default)]
struct Set {
    counters: Arc<Mutex<Counters>>,
    asked: Arc<AtomicU64>,
}

impl Set {
    fn to(&self, accepted: u64, positions: &[u64]) {
        *self.counters.lock().unwrap() =
            Counters { accepted, draft_per_position: positions.into(), ..Counters::default() };
    }
}

impl CounterSource for Set {
    fn layout(&self) -> Layout {
        let positions = if self.asked.fetch_add(1, Ordering::Relaxed) == 0 { 3 } else { 7 };
        Layout::accepted().with_draft_positions(positions)
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        counters.clone_from(&self.counters.lock().unwrap());
        Ok(Snapshot::Landed)
    }
}

#[test]
fn boxes_of_another_length_are_cut_or_filled_with_what_was_known() {
    let (handle, _default) = set_default(builder());
    let set = Set::default();
    set.to(0, &[]);
    let _attached = handle.attach("0", set.clone()).unwrap();
    assert_eq!(set.asked.load(Ordering::Relaxed), 1);
    for (accepted, positions) in [(1, &[1, 1, 1][..]), (2, &[2]), (2, &[2]), (3, &[3, 1, 1, 9, 9]), (3, &[])] {
        set.to(accepted, positions);
        handle.flush(Duration::from_secs(1)).unwrap();
    }
    step_span!(num_spec_tokens = 3, num_drafts = 0).in_scope(|| {});
    handle.flush(Duration::from_secs(1)).unwrap();
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.accepted_tokens, metrics.draft_per_position), (Some(3), Some(vec![3, 1, 1])));
}

#[test]
fn a_restart_behind_a_history_is_one_restart() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    let set = Set::default();
    set.to(9, &[9, 9, 9]);
    let _attached = handle.attach("0", set.clone()).unwrap();
    for (accepted, positions) in [(0, [0, 0, 0]), (1, [1, 0, 0]), (2, [2, 0, 0]), (3, [3, 1, 0])] {
        set.to(accepted, &positions);
        handle.flush(Duration::from_secs(1)).unwrap();
    }
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.accepted_tokens, metrics.drafts, metrics.draft_tokens), (Some(3), Some(3), Some(4)));
    assert_eq!(exported.collect()[&anomaly("counter_restarted")], 1.0);
}

/// On the host, and answers as the test says.
struct OnHost(Arc<Mutex<Option<SourceError>>>);

impl CounterSource for OnHost {
    fn layout(&self) -> Layout {
        Layout::accepted()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Counters) -> Result<Snapshot, SourceError> {
        self.0.lock().unwrap().map_or(Ok(Snapshot::Landed), Err)
    }

    fn is_on_host(&self) -> bool {
        true
    }
}

#[test]
fn a_source_on_the_host_that_fails_is_counted() {
    let (handle, _default) = set_default(builder());
    let answer = Arc::new(Mutex::new(None));
    let _attached = handle.attach("0", OnHost(Arc::clone(&answer))).unwrap();
    for error in [SourceError::Failed(Failed::Driver(7)), SourceError::Busy(Busy::Contended)] {
        *answer.lock().unwrap() = Some(error);
        step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {});
    }
    *answer.lock().unwrap() = None;
    handle.flush(Duration::from_secs(1)).unwrap();
    let totals = handle.totals().engines.remove(0);
    assert_eq!(totals.collections, [("skipped", Some("contended"), 1), ("failed", Some("driver_error"), 1)]);
    assert_eq!(totals.draft_tokens, 8);
}
