//! A step's span costs other layers what any span costs them; a filter on theirs keeps it out, and ours still counts.
#![allow(missing_docs)]

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::{info, info_span};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, fmt};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn decode() {
    info_span!("request", id = 7).in_scope(|| {
        step_span!(num_spec_tokens = 4, num_drafts = 1, num_accepted_tokens = 3).in_scope(|| info!("verified"));
    });
}

#[test]
fn the_log_keeps_its_events_and_loses_the_step() {
    let (log, filtered_log) = (Log::default(), Log::default());
    let (layer, handle) = builder().build().unwrap();
    let without_steps = filter_fn(|metadata| metadata.name() != "spec_decode_step");
    let stack = tracing_subscriber::registry()
        .with(layer)
        .with(fmt::layer().with_ansi(false).with_writer(log.clone()))
        .with(fmt::layer().with_ansi(false).with_writer(filtered_log.clone()).with_filter(without_steps));
    tracing::subscriber::with_default(stack, decode);
    assert!(log.text().contains("request{id=7}:spec_decode_step{num_spec_tokens=4 num_drafts=1"), "{}", log.text());
    assert!(filtered_log.text().contains("request{id=7}: "), "{}", filtered_log.text());
    assert!(filtered_log.text().contains("verified") && !filtered_log.text().contains("spec_decode_step"));
    assert_eq!(handle.metrics("0").unwrap().accepted_tokens, Some(3));
}
