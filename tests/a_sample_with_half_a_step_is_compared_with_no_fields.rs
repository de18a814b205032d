//! A copy can hold work of a step that is not over: a flush comes in its middle, or the step begins while the copy is
//! being started. What the fields say of whole steps is not held against such a sample.
#![allow(missing_docs)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{Dispatch, dispatcher};
use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};
use tracing_spec_decode::{Handle, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

/// Counters that land at once; what is hooked to the next start runs just before the copy is taken.
#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    now: Counters,
    taken: Counters,
    hook: Option<Box<dyn FnOnce() + Send>>,
}

impl Device {
    fn count(&self, drafted: u64, accepted: u64) {
        let now = &mut self.0.lock().unwrap().now;
        now.drafts += 1;
        now.draft_tokens += drafted;
        now.accepted += accepted;
        now.emitted += accepted + 1;
    }
}

struct Source(Device, Layout);

impl CounterSource for Source {
    fn layout(&self) -> Layout {
        self.1
    }

    fn start(&mut self) -> Result<(), SourceError> {
        let hook = self.0.0.lock().unwrap().hook.take();
        if let Some(hook) = hook {
            hook();
        }
        let state = &mut *self.0.0.lock().unwrap();
        state.taken = state.now.clone();
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        counters.clone_from(&self.0.0.lock().unwrap().taken);
        Ok(Snapshot::Landed)
    }
}

fn stack() -> (Dispatch, Handle) {
    let (layer, handle) = builder().with_interval(Duration::from_secs(3600)).build().unwrap();
    (Dispatch::new(tracing_subscriber::registry().with(layer)), handle)
}

fn anomaly(handle: &Handle, name: &str) -> u64 {
    let totals = handle.totals();
    totals.engines[0].anomalies.iter().find(|anomaly| anomaly.0 == name).map_or(0, |anomaly| anomaly.1)
}

fn step(inside: impl FnOnce()) {
    let span = step_span!(num_drafts = 1, num_draft_tokens = 4, num_accepted_tokens = 3, num_emitted_tokens = 4);
    span.in_scope(inside);
}

#[test]
fn a_flush_in_the_middle_of_a_step_finds_no_disagreement() {
    let (dispatch, handle) = stack();
    let device = Device::default();
    let whole = Layout::accepted().with_emitted().with_drafts().with_draft_tokens();
    let _attached = handle.attach("0", Source(device.clone(), whole)).unwrap();
    dispatcher::with_default(&dispatch, || {
        step(|| device.count(4, 3));
        step(|| {
            device.count(4, 3);
            handle.flush(Duration::from_secs(10)).unwrap();
        });
    });
    handle.flush(Duration::from_secs(10)).unwrap();
    assert_eq!(handle.totals().engines[0].accepted_tokens, 6);
    assert_eq!(anomaly(&handle, "source_disagrees"), 0);

    dispatcher::with_default(&dispatch, || step(|| device.count(4, 2)));
    handle.flush(Duration::from_secs(10)).unwrap();
    assert_eq!(anomaly(&handle, "source_disagrees"), 1, "it is still compared");
}

#[test]
fn a_step_that_begins_while_the_copy_starts_marks_it() {
    let (dispatch, handle) = stack();
    let device = Device::default();
    let _attached = handle.attach("0", Source(device.clone(), Layout::accepted().with_emitted())).unwrap();
    let span = dispatcher::with_default(&dispatch, || {
        step(|| device.count(4, 3));
        step_span!(num_drafts = 1, num_draft_tokens = 4, num_accepted_tokens = 4, num_emitted_tokens = 5)
    });
    let (id, entering, counting) = (span.id().unwrap(), dispatch.clone(), device.clone());
    device.0.lock().unwrap().hook = Some(Box::new(move || {
        entering.enter(&id);
        counting.count(4, 4);
    }));
    // On this thread, as if the step's own came in between. The flush starts the copy, and then waits for the step.
    assert!(handle.flush(Duration::ZERO).is_err());
    handle.poll("0");
    assert_eq!(anomaly(&handle, "overlap"), 1);
    let totals = handle.totals();
    assert!(totals.engines[0].accepted_tokens <= totals.engines[0].draft_tokens, "{totals:?}");

    dispatch.exit(&span.id().unwrap());
    drop(span);
    handle.flush(Duration::from_secs(10)).unwrap();
    assert_eq!((handle.totals().engines[0].accepted_tokens, handle.totals().engines[0].draft_tokens), (7, 8));
    assert_eq!(anomaly(&handle, "source_disagrees"), 0);
}
