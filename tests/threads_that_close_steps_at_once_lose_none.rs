//! Many threads close steps of one engine at once while others read, flush and ask: every step is counted.
#![allow(missing_docs)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{Exported, of_engine, stack_of};
use tracing_spec_decode::{builder, step_span};

const THREADS: u64 = 8;
const STEPS: u64 = 5_000;

#[test]
fn every_step_is_counted_and_no_collection_shows_more_accepted_than_drafted() {
    let exported = Exported::cumulative();
    let builder = builder().with_interval(Duration::from_millis(1)).with_max_open_steps(4_096);
    let (dispatch, handle) = stack_of(builder.with_meter_provider(&exported.provider));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    tracing::dispatcher::with_default(&dispatch, || {
                        for step in 0..STEPS {
                            let span = step_span!(num_spec_tokens = 4, num_drafts = 2);
                            span.in_scope(|| span.record("num_accepted_tokens", step % 9));
                        }
                    });
                })
            })
            .collect();
        scope.spawn(|| {
            let mut before = 0.0;
            while !done.load(Ordering::Relaxed) {
                let points = exported.collect();
                let point = |name: &str| points.get(&of_engine(name)).copied().unwrap_or_default();
                assert!(point("accepted_tokens") <= point("draft_tokens"));
                assert!(point("draft_tokens") >= before, "a counter fell");
                before = point("draft_tokens");
                let _ = handle.flush(Duration::ZERO);
                let _ = handle.metrics("0");
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    handle.flush(Duration::from_secs(10)).unwrap();
    let points = exported.collect();
    let lost = points
        .get("spec_decode.anomalies{spec_decode.anomaly.type=open_steps_over_bound}")
        .copied()
        .unwrap_or_default();
    let counted = handle.status("0").steps;
    assert_eq!(counted as f64 + lost, (THREADS * STEPS) as f64);
    assert_eq!(points[&of_engine("draft_tokens")], counted as f64 * 8.0);
    assert_eq!(lost, 0.0);
}
