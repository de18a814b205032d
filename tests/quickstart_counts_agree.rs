//! The quickstart's decode loop, the layer's handle and OpenTelemetry count the same, and no token is lost.

#[path = "../examples/quickstart/engine.rs"]
mod engine;
#[path = "../examples/quickstart/exported.rs"]
#[expect(dead_code, reason = "only the example prints points one by one")]
mod exported;
#[path = "../examples/quickstart/language_model.rs"]
mod language_model;
#[path = "../examples/quickstart/rng.rs"]
mod rng;
#[path = "../examples/quickstart/speculative.rs"]
mod speculative;
#[path = "../examples/quickstart/vocabulary.rs"]
#[expect(dead_code, reason = "only the example turns tokens into text again")]
mod vocabulary;

use std::time::Duration;

use engine::{Counts, Engine, MAX_NEW_TOKENS, Models, PROMPT_LEN, Plan};
use exported::{by_name, last_export};
use language_model::LanguageModel;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use serde_json::{Map, Value, json};
use tracing_spec_decode::{HostCounters, SpecDecodeMetrics};
use tracing_subscriber::prelude::*;
use vocabulary::{Token, Vocabulary};

const TEXT: &str = include_str!("../examples/quickstart/engine.rs");

fn models() -> (Models, Vec<Token>) {
    let vocabulary = Vocabulary::of(TEXT.as_bytes());
    let text = vocabulary.encode(TEXT.as_bytes());
    let train = |order| LanguageModel::train(&text, vocabulary.len(), order);
    (Models { target: train(5), draft: train(3) }, text)
}

/// Decodes under a layer of its own: what the loop counted, what the handle says, and what was exported.
fn decode(num_spec_tokens: usize, batch: usize, steps: u64) -> (Counts, SpecDecodeMetrics, Map<String, Value>) {
    let exporter = InMemoryMetricExporter::default();
    let provider = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(exporter.clone()).build()).build();
    let (layer, handle) = tracing_spec_decode::builder()
        .with_interval(Duration::from_millis(1))
        .with_meter_provider(&provider)
        .build()
        .expect("a layer");
    let _current = tracing_subscriber::registry().with(layer).set_default();

    let mut counters = HostCounters::new();
    let _attached = handle.attach("0", counters.source()).expect("attached");
    let (models, text) = models();
    let mut engine = Engine::new(&models, &text, Plan { num_spec_tokens, batch, seed: 5, ..Plan::default() });
    for _ in 0..steps {
        engine.step(&mut counters);
    }
    handle.flush(Duration::from_secs(5)).expect("flushed");
    provider.force_flush().expect("exported");
    let points = last_export(&exporter);
    (engine.counts().clone(), handle.metrics("0").expect("metrics"), by_name(points.iter()))
}

#[test]
fn the_loop_the_handle_and_the_export_count_the_same() {
    // Long enough for sequences to end, with drafts cut short by that.
    for (num_spec_tokens, batch, steps) in [(1, 1, 400), (4, 3, 300), (16, 2, 200), (2, 20, 150)] {
        let (counts, metrics, exported) = decode(num_spec_tokens, batch, steps);
        assert_eq!(counts.steps, steps);
        assert!(counts.draft_tokens < num_spec_tokens as u64 * counts.drafts || counts.drafts < steps * batch as u64);

        assert_eq!(metrics.num_spec_tokens, Some(num_spec_tokens as u64));
        assert_eq!(metrics.drafts, Some(counts.drafts));
        assert_eq!(metrics.draft_tokens, Some(counts.draft_tokens));
        assert_eq!(metrics.accepted_tokens, Some(counts.accepted_tokens));
        assert_eq!(metrics.emitted_tokens, Some(counts.emitted_tokens));
        assert_eq!(metrics.draft_per_position.as_ref(), Some(&counts.draft_tokens_per_position));
        assert_eq!(metrics.accepted_per_position.as_ref(), Some(&counts.accepted_per_position));
        assert_eq!(metrics.draft_acceptance_rate(), counts.draft_acceptance_rate());
        assert_eq!(metrics.system_efficiency(), counts.system_efficiency());
        assert_eq!(metrics.mean_acceptance_length(), counts.mean_acceptance_length());

        for (name, expected) in [
            ("steps", json!(steps)),
            ("num_spec_tokens", json!(num_spec_tokens)),
            ("drafts", json!(counts.drafts)),
            ("draft_tokens", json!(counts.draft_tokens)),
            ("accepted_tokens", json!(counts.accepted_tokens)),
            ("emitted_tokens", json!(counts.emitted_tokens)),
            ("draft_tokens_per_position", json!(counts.draft_tokens_per_position)),
            ("accepted_tokens_per_position", json!(counts.accepted_per_position)),
        ] {
            assert_eq!(exported.get(&format!("spec_decode.{name}")), Some(&expected), "{name}, k = {num_spec_tokens}");
        }
        assert_eq!(exported.get("spec_decode.anomalies"), None);
    }
}

#[test]
fn without_draft_tokens_there_are_steps_and_tokens_but_no_drafts() {
    let (counts, metrics, exported) = decode(0, 3, 50);
    assert_eq!((counts.steps, counts.tokens, counts.drafts, counts.emitted_tokens), (50, 150, 0, 0));
    assert_eq!((metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens), (Some(0), Some(0), Some(0)));
    assert!(metrics.draft_acceptance_rate().is_nan());
    assert_eq!(exported.get("spec_decode.steps"), Some(&json!(50)));
    assert_eq!(exported.get("spec_decode.drafts"), Some(&json!(0)));
    assert_eq!(exported.get("spec_decode.num_spec_tokens"), None);
}

#[test]
fn a_sequence_keeps_every_token_that_it_emitted_and_ends_at_its_limit() {
    // A callsite that a thread without a subscriber meets first can stay off for the other tests' threads.
    let _current = tracing_subscriber::registry().set_default();
    let (models, text) = models();
    for num_spec_tokens in [0, 1, 4, 16] {
        let mut engine = Engine::new(&models, &text, Plan { num_spec_tokens, batch: 1, seed: 11, ..Plan::default() });
        let mut counters = HostCounters::new();
        while engine.counts().tokens < MAX_NEW_TOKENS as u64 {
            assert_eq!(engine.sample().len() as u64, PROMPT_LEN as u64 + engine.counts().tokens);
            engine.step(&mut counters);
        }
        assert_eq!(engine.counts().tokens, MAX_NEW_TOKENS as u64, "k = {num_spec_tokens}");
        assert_eq!(engine.sample().len(), PROMPT_LEN + MAX_NEW_TOKENS);
    }
}
