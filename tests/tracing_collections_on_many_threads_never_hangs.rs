//! Under a global subscriber, with a log layer that wants everything, engines on threads of their own trace their
//! collections: no thread waits for another, and each collection is in the trace of a step of its own engine.
#![cfg(feature = "otel-trace")]
#![allow(missing_docs)]

mod support;
mod traced;

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

use opentelemetry::trace::SpanId;
use support::Device;
use traced::{Traces, attribute};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

const ENGINES: usize = 4;
const STEPS: usize = 2_000;

#[test]
fn tracing_collections_on_many_threads_never_hangs() {
    let (done, is_done) = mpsc::channel();
    let test = std::thread::spawn(move || {
        run();
        done.send(()).unwrap();
    });
    let hangs = matches!(is_done.recv_timeout(Duration::from_secs(60)), Err(mpsc::RecvTimeoutError::Timeout));
    assert!(!hangs, "some thread waits for ever");
    test.join().unwrap();
}

fn run() {
    let traces = Traces::new();
    let (layer, handle) =
        builder().with_interval(Duration::from_micros(200)).with_tracer_provider(&traces.provider).build().unwrap();
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer()).with_filter(LevelFilter::INFO);
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(LevelFilter::TRACE);
    tracing_subscriber::registry().with(layer).with(otel).with(log).init();

    std::thread::scope(|scope| {
        for engine in 0..ENGINES {
            let handle = handle.clone();
            scope.spawn(move || {
                let name = engine.to_string();
                let device = Device::default();
                let attached = handle.attach(&name, device.source()).unwrap();
                for _ in 0..STEPS {
                    let span = step_span!(num_spec_tokens = 4, num_drafts = 2, engine = &*name);
                    span.in_scope(|| device.add(5, 7));
                }
                handle.flush(Duration::from_secs(30)).unwrap();
                drop(attached);
            });
        }
    });

    let engine_of = |span: &_| attribute(span, "engine").or(attribute(span, "spec_decode.engine"));
    let steps: HashMap<SpanId, _> =
        traces.steps().iter().map(|step| (step.span_context.span_id(), engine_of(step))).collect();
    assert_eq!(steps.len(), ENGINES * STEPS);
    let collects = traces.collects();
    assert!(collects.len() > ENGINES, "{} collections", collects.len());
    for collect in &collects {
        assert_eq!(steps.get(&collect.parent_span_id), Some(&engine_of(collect)), "{collect:?}");
    }
}
