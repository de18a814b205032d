//! An `.instrument`ed future is one step however often it is polled, and its copies start when it closes.
#![allow(missing_docs)]

mod support;

use std::task::{Context, Waker};
use std::time::Duration;

use support::{Stack, collections, of_engine, run, set_default};
use tracing::Instrument;
use tracing_spec_decode::{builder, step_span};

#[test]
fn a_thousand_ready_futures_make_one_void_copy_and_then_one_copy_per_interval() {
    let stack = Stack::of(builder().with_interval(Duration::from_secs(5)));
    let (device, _attached) = stack.attach();
    device.land_after(3);
    for _ in 0..1_000 {
        stack.pass(100);
        let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
        run(async { device.add(3, 4) }.instrument(span));
    }
    assert_eq!(stack.handle.status("0").steps, 1_000);
    stack.flush();
    let metrics = stack.metrics();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(4_000), Some(3_000)));
    let points = stack.collect();
    assert_eq!(points[&of_engine("emitted_tokens")], 4_000.0);
    let resolved = collections(&points, "resolved", None);
    let void = collections(&points, "skipped", Some("half_step"));
    assert!(void <= 1.0, "{points:?}");
    // 100 s, five per copy plus the three or four steps until it lands: 18 and the flush's.
    assert!((18.0..=19.0).contains(&resolved), "{resolved} resolved");
    assert_eq!(device.starts() as f64, resolved + void + 1.0, "every copy ended, the zero apart");
}

#[test]
fn a_cancelled_future_is_one_incomplete_step() {
    let (handle, _default) = set_default(builder());
    let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
    let mut future = Box::pin(std::future::pending::<()>().instrument(span));
    for _ in 0..50 {
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(future);
    assert_eq!(handle.status("0").steps, 1);
    assert_eq!(handle.status("0").open_steps, 0);
    assert_eq!(handle.metrics("0").unwrap().draft_tokens, None);
}
