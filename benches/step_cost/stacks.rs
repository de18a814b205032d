//! The stacks: ours, what it is measured against, and neighbours.

use std::time::Duration;

use tracing::subscriber::{Interest, with_default};
use tracing::{Metadata, Subscriber};
use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};
use tracing_spec_decode::{HostCounters, builder};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::registry;

pub(crate) const NAMES: [&str; 9] =
    ["none", "registry", "noop", "ours", "ours_device", "ours_host", "filtered", "filtered_noop", "filtered_ours"];

/// Runs something under a stack; false if there is none of this name.
pub(crate) fn run(stack: &str, steps: impl FnOnce()) -> bool {
    let (layer, handle) = builder().with_interval(Duration::from_secs(3600)).build().expect("the defaults are right");
    match stack {
        "none" => steps(),
        "registry" => with_default(registry(), steps),
        "noop" => with_default(registry().with(Noop.with_filter(Ours)), steps),
        "ours" => with_default(registry().with(layer), steps),
        "ours_device" => {
            let _of_the_default = handle.attach("0", Device).expect("the engine is new");
            let _of_the_named = handle.attach("e1", Device).expect("the engine is new");
            with_default(registry().with(layer), steps);
        }
        "ours_host" => {
            let (one, other) = (HostCounters::new(), HostCounters::new());
            let _of_the_default = handle.attach("0", one.source()).expect("the engine is new");
            let _of_the_named = handle.attach("e1", other.source()).expect("the engine is new");
            with_default(registry().with(layer), steps);
        }
        "filtered" => with_default(registry().with(Noop.with_filter(LevelFilter::INFO)), steps),
        "filtered_noop" => {
            with_default(registry().with(Noop.with_filter(Ours)).with(Noop.with_filter(LevelFilter::INFO)), steps);
        }
        "filtered_ours" => with_default(registry().with(layer).with(Noop.with_filter(LevelFilter::INFO)), steps),
        _ => return false,
    }
    true
}

/// A layer that does nothing.
struct Noop;

impl<S: Subscriber> Layer<S> for Noop {}

/// The filter that any layer for these spans would have.
struct Ours;

impl Ours {
    fn is_step(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "spec_decode_step"
    }
}

impl<S> Filter<S> for Ours {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        Self::is_step(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::is_step(metadata) { Interest::sometimes() } else { Interest::never() }
    }
}

/// A source that is never due while the steps run.
struct Device;

impl CounterSource for Device {
    fn layout(&self) -> Layout {
        Layout::accepted().with_emitted()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, _counters: &mut Counters) -> Result<Snapshot, SourceError> {
        Ok(Snapshot::Landed)
    }
}
