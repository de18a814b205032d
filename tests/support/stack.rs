//! The layer, alone in a stack.

use std::sync::Arc;
use std::time::Duration;

use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Subscriber};
use tracing_spec_decode::source::CounterSource;
use tracing_spec_decode::{Attached, Builder, GpuTotals, Handle, SpecDecodeMetrics, builder};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

use super::{Device, Exported, Points};

/// A stack of what the builder makes, for threads to enter.
pub fn stack_of(builder: Builder<'_>) -> (Dispatch, Handle) {
    let (layer, handle) = builder.build().unwrap();
    (Dispatch::new(tracing_subscriber::registry().with(layer)), handle)
}

/// The same as this thread's default, while the guard is kept.
pub fn set_default(builder: Builder<'_>) -> (Handle, DefaultGuard) {
    let (stack, handle) = stack_of(builder);
    (handle, tracing::dispatcher::set_default(&stack))
}

/// A stack that is this thread's default, with a clock that is set by hand and a reader in memory.
pub struct Stack {
    pub exported: Exported,
    pub handle: Handle,
    mock: Arc<quanta::Mock>,
    _default: DefaultGuard,
}

impl Stack {
    pub fn new() -> Self {
        Self::of(builder())
    }

    pub fn of(builder: Builder<'_>) -> Self {
        Self::over(tracing_subscriber::registry(), builder)
    }

    /// With other layers below.
    pub fn over<S>(layers: S, builder: Builder<'_>) -> Self
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let exported = Exported::cumulative();
        let (clock, mock) = quanta::Clock::mock();
        let (layer, handle) = builder.with_clock(clock).with_meter_provider(&exported.provider).build().unwrap();
        let default = tracing::subscriber::set_default(layers.with(layer));
        Self { exported, handle, mock, _default: default }
    }

    /// A source is attached to engine 0, and an interval later a copy is due.
    pub fn due(source: impl CounterSource + 'static) -> (Self, Attached) {
        let stack = Self::new();
        let attached = stack.handle.attach("0", source).unwrap();
        stack.pass(6_000);
        (stack, attached)
    }

    /// A device, attached to engine 0.
    pub fn attach(&self) -> (Device, Attached) {
        let device = Device::default();
        let attached = self.handle.attach("0", device.source()).unwrap();
        (device, attached)
    }

    pub fn pass(&self, millis: u64) {
        self.mock.increment(Duration::from_millis(millis));
    }

    pub fn flush(&self) {
        self.handle.flush(Duration::from_secs(5)).unwrap();
    }

    /// Of engine 0.
    pub fn metrics(&self) -> SpecDecodeMetrics {
        self.handle.metrics("0").unwrap()
    }

    /// Of engine 0.
    pub fn gpu(&self) -> GpuTotals {
        self.handle.totals().engines[0].gpu
    }

    pub fn collect(&self) -> Points {
        self.exported.collect()
    }
}
