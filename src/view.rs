//! What an instrument shows: one state of all engines for a whole collection. Everything here runs on a reader's thread.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::metrics::AsyncInstrument;
use opentelemetry::{KeyValue, StringValue};

use crate::anomaly::{self, Anomaly};
use crate::engine::Engine;
use crate::engine_totals::Totals;
use crate::marks::Part;
use crate::outcome::{Outcome, Reason};
use crate::payoff::Payoff;
use crate::phases::Phase;
use crate::published::{Reading, gave, word};
use crate::quantity::Quantity;
use crate::shared::Shared;
use crate::ticks::NEVER;
use crate::window::{gauge, lifetime};

/// How an instrument takes its numbers from one engine's.
pub(crate) type Observe<T> = fn(&View<'_>, &dyn AsyncInstrument<T>);

/// What all callbacks share, under a mutex that only readers take.
pub(crate) struct Viewer {
    shared: Arc<Shared>,
    state: Mutex<Snapshot>,
}

/// The state that one collection reads.
#[derive(Default)]
struct Snapshot {
    /// By the engines' indices.
    engines: BTreeMap<u32, EngineReading>,
    now: u64,
    /// The instruments that have asked since it was taken.
    asked: u32,
}

struct EngineReading {
    attributes: Vec<KeyValue>,
    /// What `spec_decode.info` carries.
    info: Vec<KeyValue>,
    reading: Reading,
    scratch: Reading,
    contended: u64,
    /// It has been read at least once.
    known: bool,
}

impl Viewer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, state: Mutex::default() }
    }

    /// Shows an instrument the numbers. One that asks a second time begins a new collection, with a new state.
    pub(crate) fn observe<T>(&self, asks: u32, out: &dyn AsyncInstrument<T>, observe: Observe<T>) {
        let mut snapshot = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if snapshot.asked == 0 || snapshot.asked & asks != 0 {
            snapshot.renew(&self.shared);
        }
        snapshot.asked |= asks;
        for engine in snapshot.engines.values().filter(|engine| engine.known) {
            observe(&View { shared: &self.shared, engine, reading: &engine.reading, now: snapshot.now }, out);
        }
    }

    /// The anomalies that belong to no engine.
    pub(crate) fn global_anomalies(&self, out: &dyn AsyncInstrument<u64>) {
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
            let read = self.engines.entry(engine.index).or_insert_with(|| EngineReading::blank(engine));
            if engine.published.read(&mut read.reading, &mut read.scratch) {
                read.known = true;
                read.contended = engine.hot.contended.load(Ordering::Relaxed);
            }
        }
    }
}

impl EngineReading {
    fn blank(engine: &Engine) -> Self {
        // Each point has a copy, so the text is shared.
        let pair = |name: &'static str, value: &str| KeyValue::new(name, StringValue::from(Arc::<str>::from(value)));
        let named = [pair("spec_decode.engine", &engine.name)].into_iter();
        let attributes: Vec<_> = named.chain(engine.attributes.iter().map(|(name, value)| pair(name, value))).collect();
        let described = engine.attributes.info().map(|(name, value)| pair(name, value));
        let version = KeyValue::new("spec_decode.version", env!("CARGO_PKG_VERSION"));
        let info = attributes.iter().cloned().chain(described).chain([version]).collect();
        let (reading, scratch) = (engine.published.blank(), engine.published.blank());
        Self { attributes, info, reading, scratch, contended: 0, known: false }
    }
}

/// One engine's numbers, as an instrument sees them.
pub(crate) struct View<'a> {
    shared: &'a Shared,
    engine: &'a EngineReading,
    pub(crate) reading: &'a Reading,
    now: u64,
}

impl View<'_> {
    fn with(&self, more: impl IntoIterator<Item = KeyValue>) -> Vec<KeyValue> {
        self.engine.attributes.iter().cloned().chain(more).collect()
    }

    fn gave(&self, bit: u64) -> bool {
        self.reading.words[word::GAVE] & bit != 0
    }

    pub(crate) fn total(&self, quantity: Quantity, always: bool, out: &dyn AsyncInstrument<u64>) {
        if always || self.gave(1 << quantity as u64) {
            let total = self.reading.words[word::TOTALS.wrapping_add(quantity as usize)];
            out.observe(total, &self.engine.attributes);
        }
    }

    pub(crate) fn discarded(&self, out: &dyn AsyncInstrument<u64>) {
        if self.gave(gave::DISCARDED) {
            out.observe(self.reading.words[word::DISCARDED], &self.engine.attributes);
        }
    }

    pub(crate) fn positions(&self, bit: u64, counts: &[u64], out: &dyn AsyncInstrument<u64>) {
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

    pub(crate) fn steps(&self, out: &dyn AsyncInstrument<u64>) {
        self.by_drafted(word::STEPS, &mut |steps, attributes| out.observe(steps, attributes));
    }

    /// What the steps' batches had, from `first` on, once a step has said so.
    pub(crate) fn batch(&self, bit: u64, first: usize, out: &dyn AsyncInstrument<u64>) {
        if self.gave(bit) {
            self.by_drafted(first, &mut |count, attributes| out.observe(count, attributes));
        }
    }

    pub(crate) fn step_time(&self, out: &dyn AsyncInstrument<f64>) {
        self.by_drafted(word::STEP_TICKS, &mut |ticks, attributes| out.observe(self.seconds(ticks), attributes));
    }

    pub(crate) fn phase_time(&self, phase: Phase, bit: u64, out: &dyn AsyncInstrument<f64>) {
        if self.gave(bit) {
            let ticks = self.reading.words[word::PHASE_TICKS.wrapping_add(phase as usize)];
            out.observe(self.seconds(ticks), &self.engine.attributes);
        }
    }

    /// A word of each part of a step that has ever been timed on the device.
    pub(crate) fn gpu(&self, first: usize, observe: impl Fn(u64, &[KeyValue])) {
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

    pub(crate) fn collections(&self, out: &dyn AsyncInstrument<u64>) {
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

    pub(crate) fn anomalies(&self, out: &dyn AsyncInstrument<u64>) {
        for anomaly in Anomaly::ALL {
            let count = self.reading.words[word::ANOMALIES.wrapping_add(anomaly as usize)];
            if count > 0 {
                out.observe(count, &self.with([KeyValue::new("spec_decode.anomaly.type", anomaly.name())]));
            }
        }
    }

    pub(crate) fn collection_time(&self, out: &dyn AsyncInstrument<f64>) {
        let ticks = self.reading.words[word::COLLECTION_TICKS];
        if self.reading.words[word::collection(Outcome::Resolved, Reason::None)] > 0 {
            out.observe(self.seconds(ticks), &self.engine.attributes);
        }
    }

    pub(crate) fn collection_age(&self, out: &dyn AsyncInstrument<f64>) {
        let since = self.reading.words[word::IN_FLIGHT_SINCE];
        if since != NEVER {
            out.observe(self.seconds(self.now.saturating_sub(since)), &self.engine.attributes);
        }
    }

    pub(crate) fn window_sums(&self) -> [f64; Quantity::COUNT] {
        Quantity::ALL.map(|quantity| self.reading.words[word::WINDOW_SUMS.wrapping_add(quantity as usize)] as f64)
    }

    /// Whether the last window has this gauge, and is not too old to be shown.
    fn shows(&self, gauge: u64) -> bool {
        let age = self.shared.ticks.duration(self.now.saturating_sub(self.reading.words[word::WINDOW_END]));
        let length = self.shared.ticks.duration(self.reading.words[word::WINDOW_LENGTH]);
        self.reading.words[word::WINDOW_GAUGES] & gauge != 0 && age <= lifetime(self.shared.interval, length)
    }

    pub(crate) fn gauge(&self, gauge: u64, value: f64, out: &dyn AsyncInstrument<f64>) {
        if self.shows(gauge) {
            out.observe(value, &self.engine.attributes);
        }
    }

    fn payoff(&self) -> Payoff {
        Totals::of(self.reading).minus(&Totals::default(), &self.shared.ticks).payoff()
    }

    pub(crate) fn speedup(&self, out: &dyn AsyncInstrument<f64>) {
        if let Some(speedup) = self.payoff().speedup() {
            out.observe(speedup, &self.engine.attributes);
        }
    }

    pub(crate) fn best_num_spec_tokens(&self, out: &dyn AsyncInstrument<u64>) {
        if let Some(best) = self.payoff().best() {
            out.observe(best.num_spec_tokens, &self.engine.attributes);
        }
    }

    pub(crate) fn info(&self, out: &dyn AsyncInstrument<u64>) {
        out.observe(1, &self.engine.info);
    }

    pub(crate) fn num_spec_tokens(&self, out: &dyn AsyncInstrument<u64>) {
        if self.shows(gauge::NUM_SPEC_TOKENS) {
            out.observe(self.reading.words[word::WINDOW_NUM_SPEC_TOKENS], &self.engine.attributes);
        }
    }
}
