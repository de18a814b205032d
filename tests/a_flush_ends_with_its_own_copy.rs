//! A flush is done once its own copy is published, whatever becomes of the engine and of others' copies before it looks;
//! and not before that.
#![allow(missing_docs)]

mod support;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use support::{Device, Stack, Watchdog};
use tracing_spec_decode::source::{Busy, CounterSource, Counters, Dead, Failed, Layout, Snapshot, SourceError};
use tracing_spec_decode::{Attached, FlushError, FlushFailure, step_span};

/// A source that keeps the first thread that looks at a copy after its attach.
struct Gate {
    polls: usize,
    arrived: SyncSender<()>,
    opened: Receiver<()>,
}

impl CounterSource for Gate {
    fn layout(&self) -> Layout {
        Layout::accepted()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Counters) -> Result<Snapshot, SourceError> {
        self.polls += 1;
        if self.polls == 2 {
            self.arrived.send(()).unwrap();
            self.opened.recv().unwrap();
        }
        Ok(Snapshot::Landed)
    }
}

fn step(device: &Device) {
    step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(3, 4));
}

/// A step, then a flush on another thread. Its copy of the engine is in flight, and the flush is kept by another engine,
/// while `meanwhile` happens.
fn flush_while<T>(meanwhile: impl FnOnce(&Stack, &Device) -> T) -> (Result<(), FlushError>, Stack) {
    flush_after(|_, _| (), |stack, device, _attached| meanwhile(stack, device))
}

/// The same, after something else; what happens meanwhile has the guard.
fn flush_after<T>(
    before: impl FnOnce(&Stack, &Device),
    meanwhile: impl FnOnce(&Stack, &Device, &mut Option<Attached>) -> T,
) -> (Result<(), FlushError>, Stack) {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    let stack = Stack::new();
    let (device, attached) = stack.attach();
    let mut attached = Some(attached);
    let (arrived, has_arrived) = sync_channel(1);
    let (open, opened) = sync_channel(1);
    let _gate = stack.handle.attach("gate", Gate { polls: 0, arrived, opened }).unwrap();
    before(&stack, &device);
    step(&device);
    device.land_after(usize::MAX);
    let handle = &stack.handle;
    let flushed = std::thread::scope(|scope| {
        let flushing = scope.spawn(|| handle.flush(Duration::from_secs(20)));
        has_arrived.recv().unwrap();
        let _kept = meanwhile(&stack, &device, &mut attached);
        open.send(()).unwrap();
        flushing.join().unwrap()
    });
    (flushed, stack)
}

/// Draft tokens and accepted tokens.
fn published(stack: &Stack) -> (Option<u64>, Option<u64>) {
    let metrics = stack.metrics();
    (metrics.draft_tokens, metrics.accepted_tokens)
}

#[test]
fn the_copy_of_another_flush_fails_after_it() {
    let (flushed, stack) = flush_while(|stack, device| {
        device.land();
        step(device);
        device.fail_with(Some(SourceError::Failed(Failed::Driver(1))));
        stack.handle.flush(Duration::ZERO).unwrap_err();
    });
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(4), Some(3))));
}

#[test]
fn the_copy_of_another_flush_is_in_flight() {
    let (flushed, stack) = flush_while(|stack, device| {
        device.land();
        step(device);
        stack.handle.flush(Duration::ZERO).unwrap_err();
    });
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(4), Some(3))));
}

#[test]
fn the_source_dies_after_it() {
    let (flushed, stack) = flush_while(|stack, device| {
        device.land();
        step(device);
        device.fail_with(Some(SourceError::Dead(Dead::DeviceLost)));
        stack.handle.flush(Duration::ZERO).unwrap_err();
    });
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(4), Some(3))));
}

#[test]
fn the_engine_is_inside_its_next_step() {
    let (flushed, stack) = flush_while(|_, device| {
        device.land();
        step_span!(num_spec_tokens = 4, num_drafts = 1).entered()
    });
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(4), Some(3))));
}

#[test]
fn its_copy_is_void_and_a_busy_source_was_asked_for_another() {
    let (flushed, stack) = flush_while(|stack, device| {
        stack.handle.rebase("0");
        device.land();
        device.land_after(0);
        step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {
            device.add(3, 4);
            stack.pass(6_000);
            device.fail_with(Some(SourceError::Busy(Busy::Capturing)));
        });
        device.fail_with(None);
    });
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(8), Some(6))));
}

#[test]
fn its_copy_is_void_and_what_failed_was_one_before_it() {
    let fail_once = |stack: &Stack, device: &Device| {
        stack.pass(6_000);
        device.fail_with(Some(SourceError::Failed(Failed::Driver(1))));
        step(device);
        device.fail_with(None);
    };
    let (flushed, stack) = flush_after(fail_once, |stack, device, _| {
        stack.handle.rebase("0");
        device.land();
        device.land_after(0);
    });
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(8), Some(6))));
}

#[test]
fn its_source_is_detached_before_the_copy_lands() {
    let (flushed, stack) = flush_after(|_, _| (), |_, _, attached| drop(attached.take()));
    let failed = flushed.unwrap_err();
    assert_eq!(failed.failures().collect::<Vec<_>>(), [("0", FlushFailure::Failed)], "what it waited for is lost");
    assert_eq!(stack.handle.totals().engines.iter().map(|engine| engine.draft_tokens).sum::<u64>(), 0);
}

#[test]
fn its_source_is_detached_with_a_later_step_once_it_is_published() {
    let (flushed, stack) = flush_after(
        |_, _| (),
        |stack, device, attached| {
            device.land();
            stack.handle.poll("0");
            step(device);
            drop(attached.take());
        },
    );
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(4), Some(3))));
}

#[test]
fn its_copy_fails_and_that_of_another_flush_does_not() {
    let (flushed, stack) = flush_while(|stack, device| {
        device.land();
        device.fail_with(Some(SourceError::Failed(Failed::Driver(1))));
        step(device);
        device.fail_with(None);
        device.land_after(0);
        stack.handle.flush(Duration::ZERO).unwrap_err();
        stack.handle.flush(Duration::ZERO).unwrap_err();
    });
    assert_eq!((flushed, published(&stack)), (Ok(()), (Some(8), Some(6))));
}

#[test]
fn a_source_that_is_busy_all_the_time_has_skipped_one_copy() {
    let stack = Stack::new();
    let (device, _attached) = stack.attach();
    device.fail_with(Some(SourceError::Busy(Busy::Capturing)));
    stack.handle.flush(Duration::from_millis(20)).unwrap_err();
    let totals = stack.handle.totals();
    let skipped = totals.engines[0].collections.iter().find(|outcome| outcome.2 > 0).unwrap();
    assert_eq!(*skipped, ("skipped", Some("capturing"), 1), "however often the flush has asked");
}
