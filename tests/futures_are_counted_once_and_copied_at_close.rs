//! An `.instrument`ed future is one step however often it is polled, and its copies start when it closes.
#![allow(missing_docs)]

mod support;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use support::{Device, Exported, of_engine};
use tracing::Instrument;
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

fn run<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

fn count(points: &std::collections::BTreeMap<String, f64>, attributes: &str) -> f64 {
    let key = format!("spec_decode.collections{{{attributes},spec_decode.engine=0}}");
    let key = if points.contains_key(&key) { key } else { format!("spec_decode.collections{{{attributes}}}") };
    points.get(&key).copied().unwrap_or_default()
}

#[test]
fn a_thousand_ready_futures_make_one_void_copy_and_then_one_copy_per_interval() {
    let exported = Exported::cumulative();
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder()
        .with_clock(clock)
        .with_interval(Duration::from_secs(5))
        .with_meter_provider(&exported.provider)
        .build()
        .unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let device = Device::default();
    device.land_after(0);
    let _attached = handle.attach("0", device.source()).unwrap();
    device.land_after(3);
    for _ in 0..1_000 {
        mock.increment(Duration::from_millis(100));
        let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
        run(async { device.add(3, 4) }.instrument(span));
    }
    assert_eq!(handle.status("0").steps, 1_000);
    handle.flush(Duration::from_secs(5)).unwrap();
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(4_000), Some(3_000)));
    let points = exported.collect();
    assert_eq!(points[&of_engine("emitted_tokens")], 4_000.0);
    let resolved = count(&points, "spec_decode.collection.outcome=resolved");
    let void = count(&points, "error.type=half_step,spec_decode.collection.outcome=skipped");
    assert!(void <= 1.0, "{points:?}");
    // 100 s, five per copy plus the three or four steps until it lands: 18 and the flush's.
    assert!((18.0..=19.0).contains(&resolved), "{resolved} resolved");
    assert_eq!(device.starts() as f64, resolved + void + 1.0, "every copy ended, the zero apart");
}

#[test]
fn a_cancelled_future_is_one_incomplete_step() {
    let (layer, handle) = builder().build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
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
