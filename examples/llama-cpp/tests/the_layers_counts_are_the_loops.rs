//! What the layer counts and exports is what the decode loop counted and what the texts have, to the token.

mod support;

use std::time::Duration;

use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use spec_decode_llama::engine::{Drafting, Engine, Settings};
use spec_decode_llama::lookahead::Lookahead;
use spec_decode_llama::sampling::Method;
use spec_decode_llama::sequence::End;
use support::{ENDS_SOON, REPEATS, exact, fast, model, number_of_tokens, parallel, prompts, run};
use tracing_subscriber::layer::SubscriberExt;

/// Decodes with the layer in the stack, holds its counts against the loop's, and hands the engine back.
#[track_caller]
fn checked(texts: &[&str], settings: Settings<'static>) -> Engine<'static> {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).with_interval(Duration::from_secs(3600)).build();
    let provider = SdkMeterProvider::builder().with_reader(reader).build();
    let (layer, handle) = tracing_spec_decode::builder().with_meter_provider(&provider).build().expect("a layer");
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    let mut engine = Engine::new(model(), &prompts(texts), settings).expect("an engine");
    let attached = handle.attach("0", engine.counters.source()).expect("attached");
    run(&mut engine);
    handle.flush(Duration::from_secs(5)).expect("flushed");
    provider.force_flush().expect("exported");

    let counts = engine.counts();
    let metrics = handle.metrics("0").expect("an engine");
    assert_eq!(handle.status("0").steps, counts.steps);
    assert_eq!(metrics.drafts, Some(counts.drafts));
    assert_eq!(metrics.draft_tokens, Some(counts.draft_tokens));
    assert_eq!(metrics.accepted_tokens, Some(counts.accepted_tokens));
    assert_eq!(metrics.emitted_tokens, Some(counts.emitted_tokens));
    assert_eq!(metrics.draft_per_position.unwrap_or_default(), counts.draft_tokens_per_position);
    assert_eq!(metrics.accepted_per_position.unwrap_or_default(), counts.accepted_per_position);
    let export = Export::last_of(&exporter);
    for (name, count) in [
        ("spec_decode.steps", counts.steps),
        ("spec_decode.drafts", counts.drafts),
        ("spec_decode.draft_tokens", counts.draft_tokens),
        ("spec_decode.accepted_tokens", counts.accepted_tokens),
        ("spec_decode.emitted_tokens", counts.emitted_tokens),
        ("spec_decode.draft_tokens_per_position", counts.draft_tokens),
        ("spec_decode.accepted_tokens_per_position", counts.accepted_tokens),
        // Among them: the fields of a step and the attached counters that disagree.
        ("spec_decode.anomalies", 0),
    ] {
        assert_eq!(export.sum(name), count, "{name}");
    }
    assert_eq!(number_of_tokens(&engine), counts.tokens, "a token was emitted and not counted, or the other way");
    drop(attached);
    engine
}

struct Export(Vec<(String, u64)>);

impl Export {
    fn last_of(exporter: &InMemoryMetricExporter) -> Self {
        let exports = exporter.get_finished_metrics().expect("exports");
        let scopes = exports.last().expect("an export").scope_metrics();
        let metrics = scopes.flat_map(|scope| scope.metrics());
        let sums = metrics.filter_map(|metric| match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                Some((metric.name().to_owned(), sum.data_points().map(|point| point.value()).sum()))
            }
            _ => None,
        });
        Self(sums.collect())
    }

    fn sum(&self, name: &str) -> u64 {
        self.0.iter().filter(|(of, _)| of == name).map(|(_, sum)| sum).sum()
    }
}

#[test]
fn with_prompt_lookup() {
    let engine = checked(&[REPEATS], fast(Drafting::PromptLookup(3), 4));
    assert!(engine.counts().accepted_tokens > 0);
}

#[test]
fn with_a_draft_model_and_sequences_of_different_length() {
    let settings = Settings { max_tokens: 20, ..fast(Drafting::Model(model()), 3) };
    let engine = checked(&[REPEATS, ENDS_SOON, "one two three"], parallel(settings, 3));
    assert!(engine.counts().drafts > engine.counts().steps);
}

#[test]
fn with_a_k_that_changes_and_tokens_that_are_drawn() {
    let lookahead = Lookahead::dynamic(2, 8);
    let lookup = Settings { lookahead, method: Method::Sampling(0.7), ..fast(Drafting::PromptLookup(2), 0) };
    checked(&[REPEATS, "one two three one two"], parallel(lookup, 4));
    let model = Settings { drafting: Drafting::Model(model()), max_tokens: 16, ..lookup };
    let counts = checked(&[REPEATS], model).counts().clone();
    assert!(counts.accepted_tokens * 10 >= counts.draft_tokens * 8, "a model agrees with itself: {counts:?}");
}

#[test]
fn without_speculation() {
    let engine = checked(&["one two three"], fast(Drafting::Off, 0));
    assert_eq!((engine.counts().steps, engine.counts().drafts), (48, 0));
}

#[test]
fn at_the_token_limit() {
    for max_tokens in 1..=7 {
        let settings = Settings { max_tokens, ..exact(Drafting::Model(model()), 4) };
        let engine = checked(&["one two three"], settings);
        assert_eq!(engine.sequences()[0].emitted().len(), max_tokens);
        assert_eq!(engine.sequences()[0].end(), Some(End::Limit));
        let counts = engine.counts();
        assert_eq!(counts.draft_tokens, counts.accepted_tokens, "no draft went over the limit: {counts:?}");
    }
}

#[test]
fn at_the_end_of_a_text() {
    for k in [1, 4] {
        let engine = checked(&[ENDS_SOON], exact(Drafting::Model(model()), k));
        let [sequence] = engine.sequences() else { panic!("one sequence") };
        assert_eq!(sequence.end(), Some(End::EndOfText));
        let (last, before) = sequence.emitted().split_last().expect("tokens");
        assert!(model().is_end(*last) && !before.iter().any(|&token| model().is_end(token)));
        // The end was drafted, so no token of the target's own follows it.
        let counts = engine.counts();
        let own_tokens = counts.emitted_tokens - counts.accepted_tokens;
        assert_eq!(own_tokens, if k == 1 { counts.drafts } else { counts.drafts - 1 }, "{counts:?}");
    }
}

#[test]
fn where_the_context_ends_first() {
    let settings = fast(Drafting::PromptLookup(3), 4);
    let prompt_len = prompts(&["one two three one two"])[0].len();
    let capacity = spec_decode_llama::runner::Capacity { context: prompt_len + 9, ..settings.capacity };
    let engine = checked(&["one two three one two"], Settings { capacity, ..settings });
    assert_eq!(engine.sequences()[0].emitted().len(), 9);
}
