//! The metrics as OpenTelemetry instruments. Everything here runs on a reader's thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::metrics::{AsyncInstrument, Meter, MeterProvider};
use opentelemetry::{InstrumentationScope, KeyValue};

use crate::anomaly::{self, Anomaly};
use crate::books::Totals;
use crate::marks::Part;
use crate::outcome::{Outcome, Reason};
use crate::payoff::Payoff;
use crate::phases::Phase;
use crate::published::{Reading, gave, word};
use crate::quantity::Quantity;
use crate::shared::Shared;
use crate::ticks::NEVER;
use crate::window::{gauge, lifetime};

/// Registers the instruments with a provider. Their callbacks keep the numbers alive: a counter that was exported is
/// observed for as long as the provider asks.
pub(crate) fn register(shared: &Arc<Shared>, provider: &dyn MeterProvider, instance: Option<String>) {
    let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME")).with_version(env!("CARGO_PKG_VERSION"));
    let scope = match instance {
        Some(instance) => scope.with_attributes([KeyValue::new("spec_decode.instance", instance)]),
        None => scope,
    };
    let meter = provider.meter_with_scope(scope.build());
    let reader = Arc::new(Reader { shared: Arc::clone(shared), state: Mutex::default() });
    let mut asks = Asks::default();
    register_counters(&meter, &reader, &mut asks);
    register_gauges(&meter, &reader, &mut asks);
}

/// The instruments' bits: each has one of its own in [`Snapshot::asked`].
#[derive(Default)]
struct Asks(u32);

impl Asks {
    fn next(&mut self) -> u32 {
        let bit = 1_u32.wrapping_shl(self.0);
        self.0 = self.0.wrapping_add(1);
        bit
    }
}

type Observe<T> = fn(&View<'_>, &dyn AsyncInstrument<T>);

fn register_counters(meter: &Meter, reader: &Arc<Reader>, asks: &mut Asks) {
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
        let (reader, asks) = (Arc::clone(reader), asks.next());
        let with_global = name == "spec_decode.anomalies";
        meter
            .u64_observable_counter(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |out| {
                reader.observe(asks, out, observe);
                if with_global {
                    reader.global_anomalies(out);
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
        let (reader, asks) = (Arc::clone(reader), asks.next());
        meter
            .f64_observable_counter(name)
            .with_unit("s")
            .with_description(description)
            .with_callback(move |out| reader.observe(asks, out, observe))
            .build();
    }
}

fn register_gauges(meter: &Meter, reader: &Arc<Reader>, asks: &mut Asks) {
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
        let (reader, asks) = (Arc::clone(reader), asks.next());
        meter
            .f64_observable_gauge(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |out| reader.observe(asks, out, observe))
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
        let (reader, asks) = (Arc::clone(reader), asks.next());
        meter
            .u64_observable_gauge(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |out| reader.observe(asks, out, observe))
            .build();
    }
}

/// What all callbacks share, under a mutex that only readers take.
struct Reader {
    shared: Arc<Shared>,
    state: Mutex<Snapshot>,
}

/// The state that one collection reads.
#[derive(Default)]
struct Snapshot {
    engines: Vec<EngineReading>,
    now: u64,
    /// The instruments that have asked since it was taken.
    asked: u32,
}

struct EngineReading {
    index: u32,
    attributes: Vec<KeyValue>,
    /// What `spec_decode.info` carries.
    info: Vec<KeyValue>,
    reading: Reading,
    scratch: Reading,
    contended: u64,
    /// It has been read at least once.
    known: bool,
}

impl Reader {
    /// Shows an instrument the numbers. One that asks a second time begins a new collection, with a new state.
    fn observe<T>(&self, asks: u32, out: &dyn AsyncInstrument<T>, observe: Observe<T>) {
        let mut snapshot = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if snapshot.asked == 0 || snapshot.asked & asks != 0 {
            snapshot.renew(&self.shared);
        }
        snapshot.asked |= asks;
        for engine in snapshot.engines.iter().filter(|engine| engine.known) {
            observe(&View { shared: &self.shared, engine, reading: &engine.reading, now: snapshot.now }, out);
        }
    }

    /// The anomalies that belong to no engine.
    fn global_anomalies(&self, out: &dyn AsyncInstrument<u64>) {
        for (name, count) in [
            (anomaly::ENGINE_REFUSED, &self.shared.engine_refused),
            (anomaly::OPEN_STEPS_OVER_BOUND, &self.shared.open_steps_over_bound),
        ] {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                out.observe(count, &[KeyValue::new("spec_decode.anomaly.type", name)]);
            }
        }
    }
}

impl Snapshot {
    fn renew(&mut self, shared: &Shared) {
        self.asked = 0;
        self.now = shared.ticks.now();
        for engine in shared.engines.iter() {
            let place = self.engines.iter().position(|known| known.index == engine.index);
            let reading = match place {
                Some(place) => self.engines.get_mut(place),
                None => {
                    let mut attributes = vec![KeyValue::new("spec_decode.engine", engine.name.to_string())];
                    attributes
                        .extend(engine.attributes.iter().map(|(name, value)| KeyValue::new(name, value.to_owned())));
                    let version = KeyValue::new("spec_decode.version", env!("CARGO_PKG_VERSION"));
                    let described = engine.attributes.info().map(|(name, value)| KeyValue::new(name, value.to_owned()));
                    let info = attributes.iter().cloned().chain(described).chain([version]).collect();
                    let (reading, scratch) = (engine.published.blank(), engine.published.blank());
                    self.engines.push(EngineReading {
                        index: engine.index,
                        attributes,
                        info,
                        reading,
                        scratch,
                        contended: 0,
                        known: false,
                    });
                    self.engines.last_mut()
                }
            };
            if let Some(reading) = reading
                && engine.published.read(&mut reading.reading, &mut reading.scratch)
            {
                reading.known |= true;
                reading.contended = engine.hot.contended.load(Ordering::Relaxed);
            }
        }
    }
}

/// One engine's numbers, as an instrument sees them.
struct View<'a> {
    shared: &'a Shared,
    engine: &'a EngineReading,
    reading: &'a Reading,
    now: u64,
}

impl View<'_> {
    fn with(&self, more: impl IntoIterator<Item = KeyValue>) -> Vec<KeyValue> {
        self.engine.attributes.iter().cloned().chain(more).collect()
    }

    fn gave(&self, bit: u64) -> bool {
        self.reading.words[word::GAVE] & bit != 0
    }

    fn total(&self, quantity: Quantity, always: bool, out: &dyn AsyncInstrument<u64>) {
        if always || self.gave(1 << quantity as u64) {
            let total = self.reading.words[word::TOTALS.wrapping_add(quantity as usize)];
            out.observe(total, &self.engine.attributes);
        }
    }

    fn discarded(&self, out: &dyn AsyncInstrument<u64>) {
        if self.gave(gave::DISCARDED) {
            out.observe(self.reading.words[word::DISCARDED], &self.engine.attributes);
        }
    }

    fn positions(&self, bit: u64, counts: &[u64], out: &dyn AsyncInstrument<u64>) {
        let seen = usize::try_from(self.reading.words[word::POSITIONS]).unwrap_or(usize::MAX);
        if self.gave(bit) {
            for (position, count) in (0_i64..).zip(counts).take(seen) {
                out.observe(*count, &self.with([KeyValue::new("spec_decode.position", position)]));
            }
        }
    }

    /// The two words from `first` on, of steps without drafts and with.
    fn by_drafted(&self, first: usize, out: &mut dyn FnMut(u64, &[KeyValue])) {
        for (drafted, word) in [(false, first), (true, first.wrapping_add(1))] {
            out(self.reading.words[word], &self.with([KeyValue::new("spec_decode.drafted", drafted)]));
        }
    }

    fn steps(&self, out: &dyn AsyncInstrument<u64>) {
        self.by_drafted(word::STEPS, &mut |steps, attributes| out.observe(steps, attributes));
    }

    /// What the steps' batches had, from `first` on, once a step has said so.
    fn batch(&self, bit: u64, first: usize, out: &dyn AsyncInstrument<u64>) {
        if self.gave(bit) {
            self.by_drafted(first, &mut |count, attributes| out.observe(count, attributes));
        }
    }

    fn step_time(&self, out: &dyn AsyncInstrument<f64>) {
        self.by_drafted(word::STEP_TICKS, &mut |ticks, attributes| out.observe(self.seconds(ticks), attributes));
    }

    fn phase_time(&self, phase: Phase, bit: u64, out: &dyn AsyncInstrument<f64>) {
        if self.gave(bit) {
            let ticks = self.reading.words[word::PHASE_TICKS.wrapping_add(phase as usize)];
            out.observe(self.seconds(ticks), &self.engine.attributes);
        }
    }

    /// A word of each part of a step that has ever been timed on the device.
    fn gpu(&self, first: usize, observe: impl Fn(u64, &[KeyValue])) {
        for part in Part::ALL {
            let word = |first: usize| self.reading.words[first.wrapping_add(part as usize)];
            if word(word::GPU_STEPS) > 0 {
                observe(word(first), &self.with([KeyValue::new("spec_decode.phase", part.name())]));
            }
        }
    }

    fn seconds(&self, ticks: u64) -> f64 {
        self.shared.ticks.duration(ticks).as_secs_f64()
    }

    fn collections(&self, out: &dyn AsyncInstrument<u64>) {
        for outcome in Outcome::ALL {
            for reason in Reason::ALL {
                let mut count = self.reading.words[word::collection(outcome, reason)];
                if (outcome, reason) == (Outcome::Skipped, Reason::Contended) {
                    count = count.saturating_add(self.engine.contended);
                }
                if count > 0 {
                    let outcome = KeyValue::new("spec_decode.collection.outcome", outcome.name());
                    let reason = reason.name().map(|reason| KeyValue::new("error.type", reason));
                    out.observe(count, &self.with([outcome].into_iter().chain(reason)));
                }
            }
        }
    }

    fn anomalies(&self, out: &dyn AsyncInstrument<u64>) {
        for anomaly in Anomaly::ALL {
            let count = self.reading.words[word::ANOMALIES.wrapping_add(anomaly as usize)];
            if count > 0 {
                out.observe(count, &self.with([KeyValue::new("spec_decode.anomaly.type", anomaly.name())]));
            }
        }
    }

    fn collection_time(&self, out: &dyn AsyncInstrument<f64>) {
        let ticks = self.reading.words[word::COLLECTION_TICKS];
        if self.reading.words[word::collection(Outcome::Resolved, Reason::None)] > 0 {
            out.observe(self.seconds(ticks), &self.engine.attributes);
        }
    }

    fn collection_age(&self, out: &dyn AsyncInstrument<f64>) {
        let since = self.reading.words[word::IN_FLIGHT_SINCE];
        if since != NEVER {
            out.observe(self.seconds(self.now.saturating_sub(since)), &self.engine.attributes);
        }
    }

    fn window_sums(&self) -> [f64; Quantity::COUNT] {
        Quantity::ALL.map(|quantity| self.reading.words[word::WINDOW_SUMS.wrapping_add(quantity as usize)] as f64)
    }

    /// Whether the last window has this gauge, and is not too old to be shown.
    fn shows(&self, gauge: u64) -> bool {
        let age = self.shared.ticks.duration(self.now.saturating_sub(self.reading.words[word::WINDOW_END]));
        let length = self.shared.ticks.duration(self.reading.words[word::WINDOW_LENGTH]);
        self.reading.words[word::WINDOW_GAUGES] & gauge != 0 && age <= lifetime(self.shared.interval, length)
    }

    fn gauge(&self, gauge: u64, value: f64, out: &dyn AsyncInstrument<f64>) {
        if self.shows(gauge) {
            out.observe(value, &self.engine.attributes);
        }
    }

    fn payoff(&self) -> Payoff {
        Totals::of(self.reading).minus(&Totals::default(), &self.shared.ticks).payoff()
    }

    fn speedup(&self, out: &dyn AsyncInstrument<f64>) {
        if let Some(speedup) = self.payoff().speedup() {
            out.observe(speedup, &self.engine.attributes);
        }
    }

    fn best_num_spec_tokens(&self, out: &dyn AsyncInstrument<u64>) {
        if let Some(best) = self.payoff().best() {
            out.observe(best.num_spec_tokens, &self.engine.attributes);
        }
    }

    fn info(&self, out: &dyn AsyncInstrument<u64>) {
        out.observe(1, &self.engine.info);
    }

    fn num_spec_tokens(&self, out: &dyn AsyncInstrument<u64>) {
        if self.shows(gauge::NUM_SPEC_TOKENS) {
            out.observe(self.reading.words[word::WINDOW_NUM_SPEC_TOKENS], &self.engine.attributes);
        }
    }
}
