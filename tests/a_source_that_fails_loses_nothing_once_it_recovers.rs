//! A source that is busy, fails or dies never reaches the engine, and what it held back is exact once it recovers.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::{Device, Stack, anomaly, collections, of_engine};
use tracing_spec_decode::source::{Busy, Dead, Failed, SourceError};
use tracing_spec_decode::{FlushFailure, SourceState, step_span};

#[test]
fn busy_then_failed_then_well_then_restarted_then_dead() {
    let stack = Stack::new();
    let device = Device::default();
    device.set(100, 100);
    let attached = stack.handle.attach("0", device.source()).unwrap();
    let step = |seconds: u64| {
        stack.pass(1_000 * seconds);
        let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
        span.in_scope(|| device.add(3, 4));
    };

    device.fail_with(Some(SourceError::Busy(Busy::Capturing)));
    step(6);
    device.fail_with(Some(SourceError::Failed(Failed::Driver(1))));
    step(1);
    assert_eq!(stack.handle.status("0").source, SourceState::BackingOff);
    assert_eq!(stack.metrics().draft_tokens.unwrap_or_default(), 0, "held back");
    device.fail_with(None);
    step(6);
    step(1);
    stack.flush();
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens, metrics.emitted_tokens), (Some(16), Some(12), Some(16)));

    device.set(40, 40);
    stack.flush();
    device.set(60, 60);
    stack.flush();
    let points = stack.collect();
    assert_eq!(points[&of_engine("accepted_tokens")], 72.0, "a restart: 40, then 20 more");

    device.fail_with(Some(SourceError::Dead(Dead::DeviceLost)));
    let error = stack.handle.flush(Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.failures().collect::<Vec<_>>(), [("0", FlushFailure::Dead)]);
    step(100);
    let points = stack.collect();
    assert_eq!(collections(&points, "skipped", Some("capturing")), 1.0);
    assert_eq!(collections(&points, "failed", Some("driver_error")), 1.0);
    assert_eq!(collections(&points, "lost", Some("device_lost")), 1.0);
    assert_eq!(points[&anomaly("counter_restarted")], 1.0);
    drop(attached);
    assert_eq!(stack.handle.status("0").source, SourceState::None);
    stack.handle.attach("0", device.source()).unwrap_err();
}
