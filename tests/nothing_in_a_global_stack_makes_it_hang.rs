//! Under a global subscriber with other layers beside ours: values that format themselves by tracing, sources that are
//! traced, `log` records between steps. What would hang is ended by a watchdog.
//!
//! A binary of its own: a scoped subscriber hides such faults, since tracing-core guards it against re-entry.
#![allow(missing_docs)]

mod support;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use support::{Watchdog, totals_of};
use tracing::{Event, Subscriber, info, info_span};
use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};
use tracing_spec_decode::{Handle, builder, step_span};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, fmt as fmt_layer};

/// Counts events, and reads the extensions of the span that each is in.
#[derive(Clone, Default)]
struct Neighbour(Arc<AtomicUsize>);

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for Neighbour {
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if let Some(span) = context.event_span(event) {
            span.extensions_mut().replace(());
        }
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Neighbour {
    fn events(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The global stack, made once.
fn global() -> &'static (Handle, Neighbour) {
    static GLOBAL: OnceLock<(Handle, Neighbour)> = OnceLock::new();
    GLOBAL.get_or_init(|| {
        let (layer, handle) = builder().with_interval(Duration::ZERO).build().unwrap();
        let neighbour = Neighbour::default();
        let stack = tracing_subscriber::registry()
            .with(tracing_error::ErrorLayer::default())
            .with(neighbour.clone())
            .with(layer)
            .with(fmt_layer::layer().with_writer(std::io::sink));
        tracing::subscriber::set_global_default(stack).unwrap();
        tracing_log::LogTracer::init().unwrap();
        (handle, neighbour)
    })
}

/// Its `Debug` raises an event, opens a step of another engine, and writes a name.
struct Talkative(&'static str);

impl fmt::Debug for Talkative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        info!("formatting");
        step_span!(engine = "inner", num_drafts = 0).in_scope(|| info!("inside"));
        f.write_str(self.0)
    }
}

struct Panics;

impl fmt::Debug for Panics {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::panic::resume_unwind(Box::new("a Debug that panics"))
    }
}

#[test]
fn a_debug_that_raises_events_and_opens_steps() {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    let (handle, neighbour) = global();
    let before = neighbour.events();
    for _ in 0..10 {
        let span = step_span!(engine = ?Talkative("talkative"), num_drafts = 0);
        span.in_scope(|| info!("step"));
        span.record("num_accepted_tokens", tracing::field::debug(Talkative("none")));
    }
    assert_eq!(handle.status("talkative").steps, 10);
    assert!(handle.status("inner").steps >= 10, "{}", handle.status("inner"));
    assert!(neighbour.events() >= before + 30, "the neighbour sees its events");
}

#[test]
fn a_debug_that_panics_is_a_refused_name_as_far_as_we_are_concerned() {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    // Alone in a stack, where no other layer formats the value.
    let (layer, handle) = builder().build().unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        drop(step_span!(engine = ?Panics, num_drafts = 0));
        let span = step_span!(num_drafts = 0);
        span.record("engine", tracing::field::debug(Panics));
    });
    assert_eq!(handle.totals().anomalies, [("engine_refused", 1)]);
    assert_eq!(handle.status("0").steps, 1);
    // In the stack with the others it is their panic that unwinds, and the next steps count all the same.
    let (handle, _) = global();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(step_span!(engine = ?Panics, num_drafts = 0))));
    drop(step_span!(engine = "after a panic", num_drafts = 0));
    assert_eq!(handle.status("after a panic").steps, 1);
}

#[test]
fn a_span_trace_as_a_value() {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    let (handle, _) = global();
    let request = info_span!("request", id = 7);
    request.in_scope(|| {
        // Of the request: `fmt` itself hangs on a trace that is recorded on its own span.
        let trace = tracing_error::SpanTrace::capture();
        let step = step_span!(engine = "traced", num_drafts = 0);
        step.in_scope(|| {
            step.record("num_tokens", tracing::field::debug(trace));
            drop(step_span!(engine = ?tracing_error::SpanTrace::capture(), num_drafts = 0));
        });
    });
    assert_eq!(handle.status("traced").steps, 1);
    let anomalies = totals_of(handle, "traced").anomalies;
    assert_eq!(anomalies, [("invalid_value", 1)]);
}

/// A source whose calls are traced, as those of an instrumented driver are; each even opens a step.
#[derive(Default)]
struct Traced {
    accepted: u64,
    starts: Arc<AtomicUsize>,
}

impl CounterSource for Traced {
    fn layout(&self) -> Layout {
        info_span!("layout").in_scope(Layout::accepted)
    }

    fn start(&mut self) -> Result<(), SourceError> {
        self.starts.fetch_add(1, Ordering::Relaxed);
        info!("start");
        step_span!(engine = "traced source", num_drafts = 0).in_scope(|| info!("inside"));
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        step_span!(engine = "traced source", num_drafts = 0).in_scope(|| info!("polling"));
        self.accepted += 1;
        counters.accepted = self.accepted;
        Ok(Snapshot::Landed)
    }
}

#[test]
fn a_source_that_is_traced_and_opens_steps_itself() {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    let (handle, _) = global();
    let source = Traced::default();
    let starts = Arc::clone(&source.starts);
    let attached = handle.attach("traced source", source).unwrap();
    for _ in 0..100 {
        step_span!(engine = "traced source", num_spec_tokens = 4, num_drafts = 1).in_scope(|| {});
    }
    handle.flush(Duration::from_secs(5)).unwrap();
    let totals = totals_of(handle, "traced source");
    assert_eq!(totals.draft_tokens, 400);
    assert!(totals.accepted_tokens > 0);
    let starts = starts.load(Ordering::Relaxed);
    assert!(starts <= 120, "{starts} copies: each step starts one at most, and none starts another");
    drop(attached);
}

#[test]
fn log_records_between_steps_lose_none() {
    let _watchdog = Watchdog::of(Duration::from_secs(60));
    let (handle, neighbour) = global();
    let before = neighbour.events();
    for _ in 0..100 {
        // A question to `log` leaves the filters' state behind it.
        assert!(!log::log_enabled!(log::Level::Trace) || log::max_level() == log::LevelFilter::Trace);
        step_span!(engine = "logged", num_drafts = 0).in_scope(|| log::info!("a record"));
    }
    assert_eq!(handle.status("logged").steps, 100);
    assert!(neighbour.events() >= before + 100);
}
