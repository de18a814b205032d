//! Once warm, no step allocates: not one counted by its fields, not one of an engine with a source, not one that starts
//! or resolves a copy or ends a window.
//!
//! A binary of its own: the allocator that counts is the process's.
#![allow(missing_docs)]

mod support;

use allocation_counter::measure;
use support::{Stack, totals_of};
use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};
use tracing_spec_decode::{HostCounters, step_span};

/// A source that lands at the second poll, and allocates nothing itself.
#[derive(Default)]
struct Device {
    accepted: u64,
    polls: u64,
}

impl CounterSource for Device {
    fn layout(&self) -> Layout {
        Layout::accepted().with_accepted_positions(8)
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        self.polls += 1;
        if self.polls.is_multiple_of(2) {
            self.accepted += 1;
            counters.accepted = self.accepted;
            counters.accepted_per_position[0] = self.accepted;
            return Ok(Snapshot::Landed);
        }
        Ok(Snapshot::Pending)
    }
}

#[test]
fn no_step_allocates() {
    let stack = Stack::new();
    let mut counters = HostCounters::new();
    let _device = stack.handle.attach("device", Device::default()).unwrap();
    let _host = stack.handle.attach("host", counters.source()).unwrap();

    let mut rounds = |rounds: u64| {
        for round in 0..rounds {
            stack.pass(1_000);
            for engine in ["fields", "device", "host"] {
                let k = 3 + round % 4;
                let span = step_span!(engine = %engine, num_spec_tokens = k, num_drafts = 2, num_sequences = 2);
                span.in_scope(|| {
                    counters.record_draft(3, 2, 3);
                    span.record("num_draft_tokens", 2 * k);
                    span.record("num_accepted_tokens", 2);
                    span.record("num_emitted_tokens", 4);
                });
            }
            drop(step_span!(engine = "fields", num_drafts = 0, num_accepted_tokens = -1));
        }
    };
    rounds(100);
    let allocations = measure(|| rounds(1_000));
    assert_eq!(allocations.count_total, 0, "{allocations:?}");

    // The steps did what they are there for.
    assert_eq!(stack.handle.status("fields").steps, 2_200);
    let resolved = totals_of(&stack.handle, "device").collections;
    assert!(matches!(resolved[..], [("resolved", None, copies)] if copies > 150), "{resolved:?}");
    // And the counter counts.
    assert!(measure(|| drop(vec![1])).count_total > 0);
}
