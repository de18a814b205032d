//! `CounterSource::wait`, as every source has it that brings none of its own.
#![allow(missing_docs)]

use std::time::Duration;

use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};

/// Lands at the poll with this number.
struct LandsAt(u32);

impl CounterSource for LandsAt {
    fn layout(&self) -> Layout {
        Layout::accepted()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Counters) -> Result<Snapshot, SourceError> {
        self.0 = self.0.saturating_sub(1);
        Ok(if self.0 == 0 { Snapshot::Landed } else { Snapshot::Pending })
    }
}

#[test]
fn until_it_lands_or_the_time_is_over() {
    let mut counters = Counters::for_layout(Layout::accepted());
    assert_eq!(LandsAt(3).wait(&mut counters, Duration::from_secs(60)), Ok(Snapshot::Landed));
    let mut never = LandsAt(u32::MAX);
    assert_eq!(never.wait(&mut counters, Duration::from_millis(5)), Ok(Snapshot::Pending));
    assert!(never.0 < u32::MAX - 1, "it was asked more than once");
    assert_eq!(LandsAt(2).wait(&mut counters, Duration::ZERO), Ok(Snapshot::Pending), "asked once");
}
