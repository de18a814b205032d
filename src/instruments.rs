//! The metrics as OpenTelemetry instruments. Everything here runs on a reader's thread.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::{InstrumentationScope, KeyValue};

use crate::phases::Phase;
use crate::published::{gave, word};
use crate::quantity::Quantity;
use crate::shared::Shared;
use crate::view::{Observe, Viewer};
use crate::window::gauge;

/// Registers the instruments with a provider. Their callbacks keep the numbers alive: a counter that was exported is
/// observed for as long as the provider asks.
pub(crate) fn register(shared: &Arc<Shared>, provider: &dyn MeterProvider, instance: Option<String>) {
    let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME")).with_version(env!("CARGO_PKG_VERSION"));
    let scope = match instance {
        Some(instance) => scope.with_attributes([KeyValue::new("spec_decode.instance", instance)]),
        None => scope,
    };
    let meter = provider.meter_with_scope(scope.build());
    let viewer = Arc::new(Viewer::new(Arc::clone(shared)));
    let mut asks = Asks::default();
    register_counters(&meter, &viewer, &mut asks);
    register_gauges(&meter, &viewer, &mut asks);
}

/// The instruments' bits: each has one of its own, by which the viewer knows that a new collection has begun.
#[derive(Default)]
struct Asks(u32);

impl Asks {
    fn next(&mut self) -> u32 {
        let bit = 1_u32.wrapping_shl(self.0);
        self.0 = self.0.wrapping_add(1);
        bit
    }
}

fn register_counters(meter: &Meter, viewer: &Arc<Viewer>, asks: &mut Asks) {
    // What is divided comes before what it is divided by: with two readers at once the quotient is too low at worst.
    let counters: [(&'static str, &'static str, &'static str, Observe<u64>); 13] = [
        ("spec_decode.accepted_tokens", "{token}", "Accepted prefix of each draft, summed", |view, out| {
            view.total(Quantity::Accepted, true, out);
        }),
        ("spec_decode.emitted_tokens", "{token}", "Tokens emitted by the drafted sequences", |view, out| {
            view.total(Quantity::Emitted, false, out);
        }),
        ("spec_decode.drafts", "{draft}", "Sequences whose drafts were verified", |view, out| {
            view.total(Quantity::Drafts, true, out);
        }),
        ("spec_decode.draft_tokens", "{token}", "Draft tokens submitted to verification", |view, out| {
            view.total(Quantity::DraftTokens, true, out);
        }),
        ("spec_decode.discarded_draft_tokens", "{token}", "Tokens drafted but never verified", |view, out| {
            view.discarded(out)
        }),
        ("spec_decode.accepted_tokens_per_position", "{token}", "Accepted tokens by draft position", |view, out| {
            view.positions(gave::ACCEPTED_PER_POSITION, &view.reading.accepted_per_position, out);
        }),
        ("spec_decode.draft_tokens_per_position", "{token}", "Draft tokens by draft position", |view, out| {
            view.positions(gave::DRAFT_PER_POSITION, &view.reading.draft_per_position, out);
        }),
        ("spec_decode.steps", "{step}", "Steps closed, with drafts and without", |view, out| view.steps(out)),
        (
            "spec_decode.sequences",
            "{sequence}",
            "Sequences of the steps' batches, with drafts and without",
            |view, out| {
                view.batch(gave::SEQUENCES, word::SEQUENCES, out);
            },
        ),
        ("spec_decode.tokens", "{token}", "Tokens emitted for all sequences of the batches", |view, out| {
            view.batch(gave::TOKENS, word::TOKENS, out);
        }),
        ("spec_decode.gpu.steps", "{step}", "Sampled steps, and phases of such, timed on the device", |view, out| {
            view.gpu(word::GPU_STEPS, |steps, attributes| out.observe(steps, attributes));
        }),
        ("spec_decode.collections", "{collection}", "Copies of device counters, by outcome", |view, out| {
            view.collections(out)
        }),
        ("spec_decode.anomalies", "{anomaly}", "Contradictions and losses, by type", |view, out| view.anomalies(out)),
    ];
    for (name, unit, description, observe) in counters {
        let (viewer, asks) = (Arc::clone(viewer), asks.next());
        let with_global = name == "spec_decode.anomalies";
        meter
            .u64_observable_counter(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |out| {
                viewer.observe(asks, out, observe);
                if with_global {
                    viewer.global_anomalies(out);
                }
            })
            .build();
    }
    let times: [(&'static str, &'static str, Observe<f64>); 5] = [
        ("spec_decode.step.time", "Time from a step's first enter to its last exit, summed", |view, out| {
            view.step_time(out);
        }),
        ("spec_decode.draft.time", "Time inside the draft spans of steps with drafts, summed", |view, out| {
            view.phase_time(Phase::Draft, gave::DRAFT_TIME, out);
        }),
        ("spec_decode.verify.time", "Time inside the verify spans of steps with drafts, summed", |view, out| {
            view.phase_time(Phase::Verify, gave::VERIFY_TIME, out);
        }),
        ("spec_decode.gpu.time", "Time on the device, of the steps in spec_decode.gpu.steps, summed", |view, out| {
            view.gpu(word::GPU_NANOS, |nanos, attributes| {
                out.observe(Duration::from_nanos(nanos).as_secs_f64(), attributes);
            });
        }),
        ("spec_decode.collection.time", "Time from the start of a copy to its publication, summed", |view, out| {
            view.collection_time(out);
        }),
    ];
    for (name, description, observe) in times {
        let (viewer, asks) = (Arc::clone(viewer), asks.next());
        meter
            .f64_observable_counter(name)
            .with_unit("s")
            .with_description(description)
            .with_callback(move |out| viewer.observe(asks, out, observe))
            .build();
    }
}

fn register_gauges(meter: &Meter, viewer: &Arc<Viewer>, asks: &mut Asks) {
    let gauges: [(&'static str, &'static str, &'static str, Observe<f64>); 5] = [
        ("spec_decode.draft_acceptance_rate", "1", "Accepted / draft tokens, over the last window", |view, out| {
            let [_, tokens, accepted, _] = view.window_sums();
            view.gauge(gauge::ACCEPTANCE_RATE, accepted / tokens, out);
        }),
        (
            "spec_decode.system_efficiency",
            "1",
            "Emitted / (draft tokens + drafts), over the last window",
            |view, out| {
                let [drafts, tokens, _, emitted] = view.window_sums();
                view.gauge(gauge::EFFICIENCY, emitted / (tokens + drafts), out);
            },
        ),
        (
            "spec_decode.mean_acceptance_length",
            "{token}",
            "1 + accepted / drafts, over the last window",
            |view, out| {
                let [drafts, _, accepted, _] = view.window_sums();
                view.gauge(gauge::ACCEPTANCE_LENGTH, 1.0 + accepted / drafts, out);
            },
        ),
        ("spec_decode.speedup", "1", "Measured speed-up over steps without drafts, over all steps", |view, out| {
            view.speedup(out);
        }),
        ("spec_decode.collection.age", "s", "Age of the copy in flight", |view, out| view.collection_age(out)),
    ];
    for (name, unit, description, observe) in gauges {
        let (viewer, asks) = (Arc::clone(viewer), asks.next());
        meter
            .f64_observable_gauge(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |out| viewer.observe(asks, out, observe))
            .build();
    }
    let numbers: [(&'static str, &'static str, &'static str, Observe<u64>); 3] = [
        (
            "spec_decode.best_num_spec_tokens",
            "{token}",
            "The k with the largest expected speed-up; 0: better not to speculate",
            |view, out| view.best_num_spec_tokens(out),
        ),
        ("spec_decode.num_spec_tokens", "{token}", "Draft tokens per sequence: the last value above 0", |view, out| {
            view.num_spec_tokens(out);
        }),
        ("spec_decode.info", "", "1, with what the engine has been described as", |view, out| view.info(out)),
    ];
    for (name, unit, description, observe) in numbers {
        let (viewer, asks) = (Arc::clone(viewer), asks.next());
        meter
            .u64_observable_gauge(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |out| viewer.observe(asks, out, observe))
            .build();
    }
}
