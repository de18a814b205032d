//! A source that is busy, fails or dies never reaches the engine, and what it held back is exact once it recovers.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::{Device, Exported, of_engine};
use tracing_spec_decode::source::{Busy, Dead, Failed, SourceError};
use tracing_spec_decode::{FlushFailure, SourceState, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

#[test]
fn busy_then_failed_then_well_then_restarted_then_dead() {
    let exported = Exported::cumulative();
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder().with_clock(clock).with_meter_provider(&exported.provider).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let device = Device::default();
    device.set(100, 100);
    let attached = handle.attach("0", device.source()).unwrap();
    let step = |seconds: u64| {
        mock.increment(Duration::from_secs(seconds));
        let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
        span.in_scope(|| device.add(3, 4));
    };

    device.fail_with(Some(SourceError::Busy(Busy::Capturing)));
    step(6);
    device.fail_with(Some(SourceError::Failed(Failed::Driver(1))));
    step(1);
    assert_eq!(handle.status("0").source, SourceState::BackingOff);
    assert_eq!(handle.metrics("0").unwrap().draft_tokens.unwrap_or_default(), 0, "held back");
    device.fail_with(None);
    step(6);
    step(1);
    handle.flush(Duration::from_secs(1)).unwrap();
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens, metrics.emitted_tokens), (Some(16), Some(12), Some(16)));

    device.set(40, 40);
    handle.flush(Duration::from_secs(1)).unwrap();
    device.set(60, 60);
    handle.flush(Duration::from_secs(1)).unwrap();
    let points = exported.collect();
    assert_eq!(points[&of_engine("accepted_tokens")], 72.0, "a restart: 40, then 20 more");

    device.fail_with(Some(SourceError::Dead(Dead::DeviceLost)));
    let error = handle.flush(Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.failures().collect::<Vec<_>>(), [("0", FlushFailure::Dead)]);
    step(100);
    let points = exported.collect();
    let collections = |attributes: &str| points[&format!("spec_decode.collections{{{attributes}}}")];
    assert_eq!(collections("error.type=capturing,spec_decode.collection.outcome=skipped,spec_decode.engine=0"), 1.0);
    assert_eq!(collections("error.type=driver_error,spec_decode.collection.outcome=failed,spec_decode.engine=0"), 1.0);
    assert_eq!(collections("error.type=device_lost,spec_decode.collection.outcome=lost,spec_decode.engine=0"), 1.0);
    assert_eq!(points["spec_decode.anomalies{spec_decode.anomaly.type=counter_restarted,spec_decode.engine=0}"], 1.0);
    drop(attached);
    assert_eq!(handle.status("0").source, SourceState::None);
    handle.attach("0", device.source()).unwrap_err();
}
