//! The layer's totals in the `metrics` crate, for engines that use it: the adapter to copy, with the names that the
//! OpenTelemetry metrics have in Prometheus. `cargo run --example metrics_crate`

use std::error::Error;
use std::time::Duration;

use metrics::{Label, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing::info_span;
use tracing_spec_decode::{EngineAttributes, EngineTotals, HostCounters, Totals, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> Result<(), Box<dyn Error>> {
    // Any recorder will do; this one renders text, and would be served with its feature `http-listener`.
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    let (layer, handle) = builder().build()?;
    tracing_subscriber::registry().with(layer).init();
    describe();

    // Your decode loop: one engine that counts by itself, position by position, and one whose spans say it all.
    let mut counters = HostCounters::new();
    handle.describe("chat", EngineAttributes::new().with_model("llama-3.1-8b").with_method("ngram"))?;
    let attached = handle.attach("chat", counters.source())?;
    for accepted in [3, 0, 4, 1] {
        let _step = step_span!(engine = "chat", num_spec_tokens = 4).entered();
        counters.record_draft(4, accepted, accepted + 1);
    }
    for _ in 0..3 {
        let step = step_span!(engine = "code", num_spec_tokens = 5, num_drafts = 2, num_sequences = 2).entered();
        info_span!("spec_decode_verify").in_scope(|| std::thread::sleep(Duration::from_millis(1)));
        step.record("num_accepted_tokens", 7);
        step.record("num_emitted_tokens", 9);
    }
    drop(step_span!(engine = "code", num_drafts = 0, num_discarded_draft_tokens = 10));
    drop(step_span!(engine = "code", num_spec_tokens = 5, num_drafts = 2));

    // At each scrape, or on a timer, on any thread; the last time after a flush.
    handle.flush(Duration::from_secs(5))?;
    publish(&handle.totals());
    print!("{}", prometheus.render());
    drop(attached);
    Ok(())
}

/// Hands all totals on. They never fall, and an absolute value can't be counted twice.
pub fn publish(totals: &Totals) {
    for engine in &totals.engines {
        publish_engine(engine);
    }
    for &(kind, count) in &totals.anomalies {
        counter!("spec_decode_anomalies_total", "spec_decode_anomaly_type" => kind).absolute(count);
    }
}

fn publish_engine(totals: &EngineTotals) {
    let count = |name: &'static str, more: &[(&'static str, String)], count: u64| {
        counter!(name, labels(totals, more)).absolute(count)
    };
    // A counter of this crate is whole, so seconds are gauges that never fall: `rate()` takes them.
    let time = |name: &'static str, more: &[(&'static str, String)], time: Duration| {
        gauge!(name, labels(totals, more)).set(time.as_secs_f64());
    };

    for (drafted, steps) in [("true", &totals.drafted_steps), ("false", &totals.plain_steps)] {
        let drafted = [("spec_decode.drafted", drafted.to_owned())];
        count("spec_decode_steps_total", &drafted, steps.steps);
        time("spec_decode_step_time_seconds_total", &drafted, steps.time);
        if let Some(sequences) = steps.sequences {
            count("spec_decode_sequences_total", &drafted, sequences);
        }
        if let Some(tokens) = steps.tokens {
            count("spec_decode_tokens_total", &drafted, tokens);
        }
    }
    for (name, phase) in [
        ("spec_decode_draft_time_seconds_total", totals.draft_time),
        ("spec_decode_verify_time_seconds_total", totals.verify_time),
    ] {
        if let Some(phase) = phase {
            time(name, &[], phase);
        }
    }
    for (name, tokens) in [
        ("spec_decode_drafts_total", Some(totals.drafts)),
        ("spec_decode_draft_tokens_total", Some(totals.draft_tokens)),
        ("spec_decode_accepted_tokens_total", Some(totals.accepted_tokens)),
        ("spec_decode_emitted_tokens_total", totals.emitted_tokens),
        ("spec_decode_discarded_draft_tokens_total", totals.discarded_draft_tokens),
    ] {
        if let Some(tokens) = tokens {
            count(name, &[], tokens);
        }
    }
    for (name, tokens) in [
        ("spec_decode_accepted_tokens_per_position_total", &totals.accepted_per_position),
        ("spec_decode_draft_tokens_per_position_total", &totals.draft_per_position),
    ] {
        for (position, &tokens) in tokens.iter().flatten().enumerate() {
            count(name, &[("spec_decode.position", position.to_string())], tokens);
        }
    }
    for &(outcome, reason, collections) in &totals.collections {
        let outcome = ("spec_decode.collection.outcome", outcome.to_owned());
        let reason = reason.map(|reason| ("error.type", reason.to_owned()));
        let labels: Vec<_> = [outcome].into_iter().chain(reason).collect();
        count("spec_decode_collections_total", &labels, collections);
    }
    for &(kind, anomalies) in &totals.anomalies {
        count("spec_decode_anomalies_total", &[("spec_decode.anomaly.type", kind.to_owned())], anomalies);
    }
}

/// The engine's name and attributes, and what else tells a series apart.
fn labels(totals: &EngineTotals, more: &[(&'static str, String)]) -> Vec<Label> {
    let of_engine = [("spec_decode.engine", totals.engine.as_str())].into_iter().chain(totals.attributes.iter());
    let all = of_engine.chain(more.iter().map(|(name, value)| (*name, value.as_str())));
    all.map(|(name, value)| Label::new(name.replace('.', "_"), value.to_owned())).collect()
}

/// The help texts, once.
pub fn describe() {
    for (name, help) in [
        ("spec_decode_steps_total", "Steps closed, with drafts and without"),
        ("spec_decode_sequences_total", "Sequences of the steps' batches, with drafts and without"),
        ("spec_decode_tokens_total", "Tokens emitted for all sequences of the batches"),
        ("spec_decode_drafts_total", "Sequences whose drafts were verified"),
        ("spec_decode_draft_tokens_total", "Draft tokens submitted to verification"),
        ("spec_decode_accepted_tokens_total", "Accepted prefix of each draft, summed"),
        ("spec_decode_emitted_tokens_total", "Tokens emitted by the drafted sequences"),
        ("spec_decode_discarded_draft_tokens_total", "Tokens drafted but never verified"),
        ("spec_decode_accepted_tokens_per_position_total", "Accepted tokens by draft position"),
        ("spec_decode_draft_tokens_per_position_total", "Draft tokens by draft position"),
        ("spec_decode_collections_total", "Copies of device counters, by outcome"),
        ("spec_decode_anomalies_total", "Contradictions and losses, by type"),
    ] {
        describe_counter!(name, help);
    }
    for (name, help) in [
        ("spec_decode_step_time_seconds_total", "Time from a step's first enter to its last exit, summed"),
        ("spec_decode_draft_time_seconds_total", "Time inside the draft spans of steps with drafts, summed"),
        ("spec_decode_verify_time_seconds_total", "Time inside the verify spans of steps with drafts, summed"),
    ] {
        describe_gauge!(name, help);
    }
}
