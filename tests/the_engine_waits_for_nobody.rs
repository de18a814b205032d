//! The engine's thread calls nothing of OpenTelemetry, and waits for no reader and no source.
#![allow(missing_docs)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::metrics::{
    AsyncInstrument, AsyncInstrumentBuilder, Callback, InstrumentProvider, Meter, MeterProvider, ObservableCounter,
    ObservableGauge,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use support::{Device, Watchdog, set_default};
use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};
use tracing_spec_decode::{SourceState, builder, step_span};

/// A provider that counts what it is asked for, and keeps the callbacks of the `u64` counters for the test to call.
#[derive(Clone, Default)]
struct Counting {
    calls: Arc<AtomicUsize>,
    counters: Arc<Mutex<Vec<Callback<u64>>>>,
}

impl Counting {
    fn count(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

impl MeterProvider for Counting {
    fn meter_with_scope(&self, _: InstrumentationScope) -> Meter {
        self.count();
        Meter::new(Arc::new(self.clone()))
    }
}

impl InstrumentProvider for Counting {
    fn u64_observable_counter(
        &self,
        builder: AsyncInstrumentBuilder<'_, ObservableCounter<u64>, u64>,
    ) -> ObservableCounter<u64> {
        self.count();
        self.counters.lock().unwrap().extend(builder.callbacks);
        ObservableCounter::new()
    }

    fn f64_observable_counter(
        &self,
        _: AsyncInstrumentBuilder<'_, ObservableCounter<f64>, f64>,
    ) -> ObservableCounter<f64> {
        self.count();
        ObservableCounter::new()
    }

    fn u64_observable_gauge(&self, _: AsyncInstrumentBuilder<'_, ObservableGauge<u64>, u64>) -> ObservableGauge<u64> {
        self.count();
        ObservableGauge::new()
    }

    fn f64_observable_gauge(&self, _: AsyncInstrumentBuilder<'_, ObservableGauge<f64>, f64>) -> ObservableGauge<f64> {
        self.count();
        ObservableGauge::new()
    }
}

/// An instrument that stays inside of each observation until it is told to go on.
struct Stuck {
    inside: SyncSender<u64>,
    go_on: Mutex<Receiver<()>>,
}

impl AsyncInstrument<u64> for Stuck {
    fn observe(&self, value: u64, _: &[KeyValue]) {
        self.inside.send(value).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
    }
}

#[test]
fn steps_never_call_opentelemetry_and_never_wait_for_a_reader() {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    let provider = Counting::default();
    let (clock, mock) = quanta::Clock::mock();
    let (handle, _default) = set_default(builder().with_clock(clock).with_meter_provider(&provider));
    let device = Device::default();
    let _attached = handle.attach("device", device.source()).unwrap();
    let instruments = provider.calls();
    assert_eq!(instruments, 1 + 26, "a meter, and the instruments of the README's table");
    let steps = |steps: u32| {
        for _ in 0..steps {
            mock.increment(Duration::from_millis(10));
            let fields = step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 3);
            fields.in_scope(|| ());
            step_span!(engine = "device", num_spec_tokens = 4, num_drafts = 1).in_scope(|| device.add(3, 4));
        }
    };
    steps(5_000);
    assert_eq!(provider.calls(), instruments, "nothing more is asked of the provider, whatever the steps do");

    let (inside, is_inside) = sync_channel(0);
    let (let_go, go_on) = sync_channel(1_000);
    let stuck = Stuck { inside, go_on: Mutex::new(go_on) };
    let callbacks = std::mem::take(&mut *provider.counters.lock().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || callbacks[0](&stuck));
        let observed = is_inside.recv().unwrap();
        // The reader is inside of our callback, and holds what readers hold. The engines go on, and so does the handle.
        steps(5_000);
        assert_eq!(handle.metrics("0").unwrap().drafts, Some(10_000));
        handle.flush(Duration::from_secs(5)).unwrap();
        assert_eq!(handle.metrics("device").unwrap().accepted_tokens, Some(30_000));
        assert_eq!(observed, 15_000, "the reader's numbers are those of its collection");
        let_go.send(()).unwrap();
        is_inside.recv().unwrap();
        let_go.send(()).unwrap();
    });
}

/// A source whose copies never land.
#[derive(Clone, Default)]
struct Stalled {
    polls: Arc<AtomicUsize>,
    attached: bool,
}

impl CounterSource for Stalled {
    fn layout(&self) -> Layout {
        Layout::accepted()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    fn poll(&mut self, _: &mut Counters) -> Result<Snapshot, SourceError> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        Ok(if std::mem::replace(&mut self.attached, true) { Snapshot::Pending } else { Snapshot::Landed })
    }
}

#[test]
fn a_copy_that_never_lands_costs_one_poll_per_interval() {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    let (clock, mock) = quanta::Clock::mock();
    let (handle, _default) = set_default(builder().with_clock(clock));
    let stalled = Stalled::default();
    let _attached = handle.attach("0", stalled.clone()).unwrap();
    let steps = |steps: u32| {
        for _ in 0..steps {
            mock.increment(Duration::from_millis(10));
            step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {});
        }
    };
    steps(1_001);
    let before = stalled.polls.load(Ordering::Relaxed);
    steps(100 * 500);
    let polls = stalled.polls.load(Ordering::Relaxed) - before;
    assert!((99..=101).contains(&polls), "{polls} polls in 100 intervals");
    let status = handle.status("0");
    assert_eq!(status.steps, 51_001);
    assert!(matches!(status.source, SourceState::InFlight(age) if age >= Duration::from_secs(500)), "{status}");
}
