//! Any value in any field, at creation or later, in any order: no panic, no value wrapped, no other engine's numbers
//! touched, and the counts are those of a model that is told the same.
#![no_main]

use std::fmt;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tracing::field::{Empty, Value};
use tracing::{Span, info_span};
use tracing_spec_decode::{EngineTotals, builder};
use tracing_subscriber::layer::SubscriberExt;

const COUNTS: [&str; 8] = [
    "num_spec_tokens",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_emitted_tokens",
    "num_discarded_draft_tokens",
    "num_sequences",
    "num_tokens",
];
const MOST_ENGINES: usize = 4;

#[derive(Arbitrary, Clone, Debug)]
enum Given {
    Small(u8),
    U64(u64),
    I64(i64),
    U128(u128),
    I128(i128),
    F64(f64),
    Bool(bool),
    Text(String),
    Debugged(String),
    Nothing,
}

/// A value whose own formatting gives this text, and opens a span of its own.
struct Debugged(String);

impl fmt::Debug for Debugged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        drop(info_span!("formatting").entered());
        f.write_str(&self.0)
    }
}

impl Given {
    fn value(&self) -> Box<dyn Value> {
        match self.clone() {
            Self::Small(value) => Box::new(value),
            Self::U64(value) => Box::new(value),
            Self::I64(value) => Box::new(value),
            Self::U128(value) => Box::new(value),
            Self::I128(value) => Box::new(value),
            Self::F64(value) => Box::new(value),
            Self::Bool(value) => Box::new(value),
            Self::Text(value) => Box::new(value),
            Self::Debugged(value) => Box::new(tracing::field::debug(Debugged(value))),
            Self::Nothing => Box::new(Empty),
        }
    }

    fn integer(&self) -> Option<i128> {
        match *self {
            Self::Small(value) => Some(value.into()),
            Self::U64(value) => Some(value.into()),
            Self::I64(value) => Some(value.into()),
            Self::U128(value) => i128::try_from(value).ok(),
            Self::I128(value) => Some(value),
            _ => None,
        }
    }

    /// As a count or a rank; `None` is a value that is refused.
    fn count(&self) -> Option<u64> {
        u32::try_from(self.integer()?).ok().map(u64::from)
    }

    /// As an engine's name; `None` is one that is refused.
    fn name(&self) -> Option<String> {
        let name = match self {
            Self::Nothing => "0".to_owned(),
            Self::Text(text) => text.clone(),
            Self::Debugged(text) => {
                if text.len() > 66 {
                    return None;
                }
                let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
                inner.unwrap_or(text).to_owned()
            }
            number => u64::try_from(number.integer()?).ok()?.to_string(),
        };
        (1..=64).contains(&name.len()).then_some(name)
    }
}

#[derive(Arbitrary, Debug)]
struct Fuzzed {
    engine: Given,
    rank: Given,
    first: [Given; 5],
    later: Vec<(u8, Given)>,
    enters: u8,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    plain: u64,
    drafted: u64,
    amounts: [u64; 4],
    discarded: u64,
    invalid: u64,
    late: u64,
}

impl Model {
    fn add(&mut self, fields: [Option<u64>; 8]) {
        let [k, drafts, tokens, accepted, emitted, discarded, ..] = fields;
        self.discarded += discarded.unwrap_or(0);
        let given = [k, drafts, tokens];
        if given.iter().all(Option::is_none) || given.contains(&Some(0)) {
            self.plain += 1;
            return;
        }
        self.drafted += 1;
        let drafts = drafts.or_else(|| (tokens? % k? == 0).then(|| tokens.unwrap() / k.unwrap()));
        // A product that is too wide for a field is unknown, as it is in a field.
        let tokens = tokens.or_else(|| Some(fields[1]? * k?).filter(|&tokens| tokens <= u32::MAX.into()));
        let (Some(drafts), Some(tokens), Some(accepted)) = (drafts, tokens, accepted) else { return };
        let contradictory = tokens < drafts
            || k.is_some_and(|k| tokens > drafts * k)
            || accepted > tokens
            || emitted.is_some_and(|emitted| emitted > tokens + drafts);
        if !contradictory {
            let amounts = [drafts, tokens, accepted, emitted.unwrap_or(0)];
            self.amounts.iter_mut().zip(amounts).for_each(|(total, amount)| *total += amount);
        }
    }
}

fn published(totals: &EngineTotals) -> Model {
    let anomaly = |name: &str| totals.anomalies.iter().find(|anomaly| anomaly.0 == name).map_or(0, |anomaly| anomaly.1);
    Model {
        plain: totals.plain_steps.steps,
        drafted: totals.drafted_steps.steps,
        amounts: [totals.drafts, totals.draft_tokens, totals.accepted_tokens, totals.emitted_tokens.unwrap_or(0)],
        discarded: totals.discarded_draft_tokens.unwrap_or(0),
        invalid: anomaly("invalid_value"),
        late: anomaly("late_identity"),
    }
}

fn span(fuzzed: &Fuzzed) -> Span {
    let [k, drafts, tokens, accepted, emitted] = fuzzed.first.each_ref().map(Given::value);
    info_span!(
        "spec_decode_step",
        engine = &*fuzzed.engine.value(),
        rank = &*fuzzed.rank.value(),
        num_spec_tokens = &*k,
        num_drafts = &*drafts,
        num_draft_tokens = &*tokens,
        num_accepted_tokens = &*accepted,
        num_emitted_tokens = &*emitted,
        num_discarded_draft_tokens = Empty,
        num_sequences = Empty,
        num_tokens = Empty,
        other = "ours to ignore",
    )
}

fn run(fuzzed: &Fuzzed, known: &mut Vec<(String, Model)>, refused: &mut u64) {
    let span = span(fuzzed);
    let mut fields = [None; 8];
    let mut model = Model::default();
    let mut rank = 0;
    let mut see = |value: &Given| {
        let count = value.count();
        if count.is_none() {
            model.invalid += 1;
        }
        count
    };
    if !matches!(fuzzed.rank, Given::Nothing) {
        rank = see(&fuzzed.rank).unwrap_or(0);
    }
    for (field, value) in fields.iter_mut().zip(&fuzzed.first) {
        if !matches!(value, Given::Nothing) {
            *field = see(value);
        }
    }
    for _ in 0..fuzzed.enters % 4 {
        drop(span.enter());
    }
    let mut late = 0;
    for (field, value) in &fuzzed.later {
        if matches!(value, Given::Nothing) {
            continue;
        }
        match usize::from(*field) % 12 {
            count if count < COUNTS.len() => {
                span.record(COUNTS[count], &*value.value());
                fields[count] = see(value);
            }
            8 => {
                span.record("engine", &*value.value());
                late += 1;
            }
            9 => {
                span.record("rank", &*value.value());
                late += 1;
            }
            _ => {
                span.record("other", &*value.value());
            }
        }
    }
    drop(span);
    if rank != 0 {
        return;
    }
    model.late = late;
    model.add(fields);
    let Some(name) = fuzzed.engine.name() else { return *refused += 1 };
    let place = match known.iter().position(|(known, _)| *known == name) {
        Some(place) => place,
        None if known.len() < MOST_ENGINES => {
            known.push((name, Model::default()));
            known.len() - 1
        }
        None => return *refused += 1,
    };
    let known = &mut known[place].1;
    known.plain += model.plain;
    known.drafted += model.drafted;
    known.discarded += model.discarded;
    known.invalid += model.invalid;
    known.late += model.late;
    known.amounts.iter_mut().zip(model.amounts).for_each(|(total, amount)| *total += amount);
}

fuzz_target!(|steps: Vec<Fuzzed>| {
    let (layer, handle) =
        builder().with_max_engines(MOST_ENGINES).with_interval(Duration::ZERO).build().expect("within the bounds");
    let (mut known, mut refused) = (Vec::new(), 0);
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        for step in &steps {
            run(step, &mut known, &mut refused);
        }
    });
    let totals = handle.totals();
    assert_eq!(totals.engines.len(), known.len(), "{totals:?}\n{known:?}");
    for (name, model) in &known {
        let engine = totals.engines.iter().find(|totals| totals.engine == *name).expect("it has had a step");
        assert_eq!(published(engine), *model, "{name}");
        let metrics = handle.metrics(name).expect("it has had a step");
        for ratio in [metrics.draft_acceptance_rate(), metrics.system_efficiency()] {
            assert!(ratio.is_nan() || (0.0..=1.0).contains(&ratio), "{metrics:?}");
        }
    }
    let lost = totals.anomalies.iter().find(|anomaly| anomaly.0 == "engine_refused").map_or(0, |anomaly| anomaly.1);
    assert_eq!(lost, refused);
});
