//! Any interleaving of steps, copies, failures, attaches, reads and flushes gives what a simple model of the contract
//! gives: exact after a flush, never falling, never a rate above 1.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use opentelemetry_sdk::metrics::Temporality;
use proptest::prelude::*;
use support::{Device, Exported, is_counter, stack_of};
use tracing::field::Empty;
use tracing::{Dispatch, Span, info_span};
use tracing_spec_decode::source::{Busy, Failed, SourceError};
use tracing_spec_decode::{Attached, Handle, builder};

pub(crate) const ENGINES: [&str; 2] = ["a", "b"];
pub(crate) const SLOTS: usize = 4;
/// For a flush that may fail: a step may be open, a source stuck.
const BRIEF: Duration = Duration::from_millis(3);
/// For a flush that can't but succeed.
const LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Makes a step in a slot, if it is free.
    Open {
        slot: usize,
        engine: usize,
        k: u8,
        drafts: u8,
        ragged: u8,
    },
    Enter {
        slot: usize,
    },
    Exit {
        slot: usize,
    },
    /// The engine's stream counts what the step accepted.
    Work {
        slot: usize,
        accepted: u8,
    },
    Record {
        slot: usize,
        field: usize,
        value: i8,
    },
    Close {
        slot: usize,
    },
    /// A whole step in one slot, as a guard on the stack has it, or as a future that is polled so often.
    Step {
        slot: usize,
        engine: usize,
        k: u8,
        drafts: u8,
        ragged: u8,
        accepted: u8,
        polls: u8,
    },
    Advance {
        millis: u16,
    },
    Poll {
        engine: usize,
    },
    Attach {
        engine: usize,
        on_host: bool,
    },
    Detach {
        engine: usize,
    },
    Source {
        engine: usize,
        mood: u8,
    },
    Restart {
        engine: usize,
    },
    Rebase {
        engine: usize,
    },
    Read,
    Flush,
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    let engine = 0..ENGINES.len();
    prop_oneof![
        4 => (slot.clone(), engine.clone(), 0..5_u8, 0..4_u8, 0..8_u8)
            .prop_map(|(slot, engine, k, drafts, ragged)| Op::Open { slot, engine, k, drafts, ragged }),
        6 => slot.clone().prop_map(|slot| Op::Enter { slot }),
        6 => slot.clone().prop_map(|slot| Op::Exit { slot }),
        4 => (slot.clone(), any::<u8>()).prop_map(|(slot, accepted)| Op::Work { slot, accepted }),
        3 => (slot.clone(), 0..FIELDS.len(), -2..20_i8).prop_map(|(slot, field, value)| Op::Record { slot, field, value }),
        5 => slot.clone().prop_map(|slot| Op::Close { slot }),
        12 => (slot, engine.clone(), 0..5_u8, 0..4_u8, 0..8_u8, any::<u8>(), 1..4_u8).prop_map(
            |(slot, engine, k, drafts, ragged, accepted, polls)| {
                // Guards are the rule: an engine whose steps are futures once is taken for one for ever.
                let polls = if polls == 3 && accepted > 240 { 3 } else { 1 };
                Op::Step { slot, engine, k, drafts, ragged, accepted, polls }
            },
        ),
        4 => (0..6_500_u16).prop_map(|millis| Op::Advance { millis }),
        1 => engine.clone().prop_map(|engine| Op::Poll { engine }),
        1 => (engine.clone(), any::<bool>()).prop_map(|(engine, on_host)| Op::Attach { engine, on_host }),
        1 => engine.clone().prop_map(|engine| Op::Detach { engine }),
        2 => (engine.clone(), 0..6_u8).prop_map(|(engine, mood)| Op::Source { engine, mood }),
        1 => engine.clone().prop_map(|engine| Op::Restart { engine }),
        1 => engine.prop_map(|engine| Op::Rebase { engine }),
        2 => Just(Op::Read),
        1 => Just(Op::Flush),
    ]
}

pub(crate) const FIELDS: [&str; 6] = [
    "num_spec_tokens",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_emitted_tokens",
    "num_discarded_draft_tokens",
];

/// A step as the model sees it: the last value of each field, `None` where it is absent or was refused.
struct Step {
    span: Span,
    engine: usize,
    inside: u32,
    fields: [Option<u64>; 6],
    /// The engine has a source, so the fields of the drafts are right and stay as they are.
    by_source: bool,
    has_worked: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Totals {
    plain: u64,
    drafted: u64,
    drafts: u64,
    draft_tokens: u64,
    accepted: u64,
    emitted: u64,
    discarded: u64,
}

/// What a closed step adds where no source is attached: whole or not at all.
fn add(step: &Step, totals: &mut Totals) {
    let [k, drafts, tokens, accepted, emitted, discarded] = step.fields;
    totals.discarded += discarded.unwrap_or(0);
    let given = [k, drafts, tokens];
    if given.iter().all(Option::is_none) || given.contains(&Some(0)) {
        totals.plain += 1;
        return;
    }
    totals.drafted += 1;
    let all_drafts = drafts.or_else(|| Some(tokens? / k?).filter(|drafts| drafts * k.unwrap() == tokens.unwrap()));
    let all_tokens = tokens.or_else(|| Some(drafts? * k?));
    let (Some(drafts), Some(tokens)) = (all_drafts, all_tokens) else { return };
    if tokens < drafts || k.is_some_and(|k| tokens > drafts * k) {
        return;
    }
    if step.by_source {
        totals.drafts += drafts;
        totals.draft_tokens += tokens;
        return;
    }
    let Some(accepted) = accepted else { return };
    if accepted > tokens || emitted.is_some_and(|emitted| emitted > tokens + drafts) {
        return;
    }
    totals.drafts += drafts;
    totals.draft_tokens += tokens;
    totals.accepted += accepted;
    totals.emitted += emitted.unwrap_or(0);
}

struct World {
    dispatch: Dispatch,
    handle: Handle,
    mock: std::sync::Arc<quanta::Mock>,
    /// A cumulative reader and a delta reader.
    exported: Exported,
    sums_of_deltas: BTreeMap<String, f64>,
    last: BTreeMap<String, f64>,
    slots: [Option<Step>; SLOTS],
    devices: [Device; ENGINES.len()],
    attached: [Option<Attached>; ENGINES.len()],
    model: [Totals; ENGINES.len()],
    /// What `metrics` counts from, where that is known.
    base: [Option<Totals>; ENGINES.len()],
}

impl World {
    fn new() -> Self {
        let (clock, mock) = quanta::Clock::mock();
        let exported = Exported::new(&[Temporality::Cumulative, Temporality::Delta]);
        let builder = builder().with_clock(clock).with_interval(Duration::from_secs(5));
        let (dispatch, handle) = stack_of(builder.with_meter_provider(&exported.provider));
        Self {
            dispatch,
            handle,
            mock,
            exported,
            sums_of_deltas: BTreeMap::new(),
            last: BTreeMap::new(),
            slots: Default::default(),
            devices: Default::default(),
            attached: Default::default(),
            model: Default::default(),
            base: std::array::from_fn(|_| Some(Totals::default())),
        }
    }

    /// Ends all steps of an engine: sources come and go between steps.
    fn end_steps(&mut self, engine: usize) {
        for slot in 0..SLOTS {
            while self.slots[slot].as_ref().is_some_and(|step| step.engine == engine && step.inside > 0) {
                self.step(&Op::Exit { slot });
            }
            if self.slots[slot].as_ref().is_some_and(|step| step.engine == engine) {
                self.step(&Op::Close { slot });
            }
        }
    }

    fn published(&self, engine: usize) -> Totals {
        let totals = self.handle.totals();
        let Some(totals) = totals.engines.iter().find(|totals| totals.engine == ENGINES[engine]) else {
            return Totals::default();
        };
        Totals {
            plain: totals.plain_steps.steps,
            drafted: totals.drafted_steps.steps,
            drafts: totals.drafts,
            draft_tokens: totals.draft_tokens,
            accepted: totals.accepted_tokens,
            emitted: totals.emitted_tokens.unwrap_or(0),
            discarded: totals.discarded_draft_tokens.unwrap_or(0),
        }
    }

    fn run(&mut self, op: &Op) {
        let dispatch = self.dispatch.clone();
        tracing::dispatcher::with_default(&dispatch, || self.step(op));
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Open { slot, engine, k, drafts, ragged } => {
                if self.slots[slot].is_none() {
                    let by_source = self.attached[engine].is_some();
                    self.slots[slot] = Some(open(engine, k, drafts, ragged, by_source));
                }
            }
            Op::Enter { slot } => {
                if let Some(step) = &mut self.slots[slot] {
                    step.inside += 1;
                    self.dispatch.enter(&step.span.id().unwrap());
                }
            }
            Op::Exit { slot } => {
                if let Some(step) = self.slots[slot].as_mut().filter(|step| step.inside > 0) {
                    step.inside -= 1;
                    self.dispatch.exit(&step.span.id().unwrap());
                }
            }
            Op::Work { slot, accepted } => {
                if let Some(step) = &mut self.slots[slot]
                    && step.by_source
                    && step.inside > 0
                    && !step.has_worked
                {
                    step.has_worked = true;
                    let (drafts, tokens) = (step.fields[1].unwrap_or(0), step.fields[2].unwrap_or(0));
                    if drafts > 0 && tokens > 0 && step.fields[0] != Some(0) {
                        let accepted = u64::from(accepted) % (tokens + 1);
                        self.devices[step.engine].add(accepted, accepted + drafts);
                        self.model[step.engine].accepted += accepted;
                        self.model[step.engine].emitted += accepted + drafts;
                    }
                }
            }
            Op::Record { slot, field, value } => {
                if let Some(step) = &mut self.slots[slot]
                    && (!step.by_source || field == 5)
                {
                    step.span.record(FIELDS[field], value);
                    step.fields[field] = u64::try_from(value).ok();
                }
            }
            Op::Close { slot } => {
                if let Some(step) = self.slots[slot].take_if(|step| step.inside == 0) {
                    add(&step, &mut self.model[step.engine]);
                }
            }
            Op::Step { slot, engine, k, drafts, ragged, accepted, polls } => {
                if self.slots[slot].is_none() {
                    self.step(&Op::Open { slot, engine, k, drafts, ragged });
                    for _ in 0..polls {
                        self.step(&Op::Enter { slot });
                        self.step(&Op::Work { slot, accepted });
                        self.step(&Op::Exit { slot });
                    }
                    self.step(&Op::Close { slot });
                }
            }
            Op::Advance { millis } => self.mock.increment(Duration::from_millis(millis.into())),
            Op::Poll { engine } => self.handle.poll(ENGINES[engine]),
            Op::Attach { engine, on_host } => {
                if self.attached[engine].is_none() {
                    self.end_steps(engine);
                    self.devices[engine].fail_with(None);
                    self.devices[engine].land_after(0);
                    let device = &self.devices[engine];
                    let source = if on_host { device.source_on_host() } else { device.source() };
                    self.attached[engine] = Some(self.handle.attach(ENGINES[engine], source).unwrap());
                    self.base[engine] = Some(self.model[engine].clone());
                }
            }
            Op::Detach { engine } => {
                if self.attached[engine].is_some() {
                    self.end_steps(engine);
                    // What is in no sample is dropped; steps and discarded tokens are published at each close.
                    let published = self.published(engine);
                    self.attached[engine] = None;
                    self.model[engine] = published.clone();
                    assert_eq!(self.published(engine), published, "a detach changes no total");
                }
            }
            Op::Source { engine, mood } => {
                let device = &self.devices[engine];
                match mood {
                    0 => device.fail_with(Some(SourceError::Busy(Busy::Capturing))),
                    1 => device.fail_with(Some(SourceError::Failed(Failed::Driver(1)))),
                    2 => device.land_after(usize::MAX),
                    late => {
                        device.fail_with(None);
                        device.land_after(usize::from(late - 3) * 2);
                        device.land();
                    }
                }
            }
            Op::Restart { engine } => {
                // What lies between the last sample and the reset is lost, so the model looks right after a flush.
                if self.attached[engine].is_some() && self.flush(BRIEF) {
                    self.devices[engine].set(0, 0);
                    assert!(self.flush(LONG));
                }
            }
            Op::Rebase { engine } => {
                // Whenever it comes, exported counters go on; `metrics` can be told from behind a flush only.
                self.base[engine] = self.flush(BRIEF).then(|| self.model[engine].clone());
                let published = self.published(engine);
                self.handle.rebase(ENGINES[engine]);
                assert_eq!(self.published(engine), published, "a rebase changes no total");
            }
            Op::Read => self.read(),
            Op::Flush => {
                self.flush(BRIEF);
            }
        }
    }

    fn flush(&mut self, timeout: Duration) -> bool {
        let flushed = self.handle.flush(timeout).is_ok();
        if flushed {
            for engine in 0..ENGINES.len() {
                assert_eq!(self.published(engine), self.model[engine], "engine {engine}, after a flush");
                self.compare_metrics(engine);
            }
        }
        flushed
    }

    /// After a flush `metrics` says what was done since an attach or a rebase.
    fn compare_metrics(&self, engine: usize) {
        if let Some((base, metrics)) = self.base[engine].as_ref().zip(self.handle.metrics(ENGINES[engine])) {
            let now = &self.model[engine];
            let steps = [metrics.plain_steps.steps, metrics.drafted_steps.steps];
            assert_eq!(steps, [now.plain - base.plain, now.drafted - base.drafted], "engine {engine}");
            let found = [metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens, metrics.emitted_tokens];
            let done = [
                now.drafts - base.drafts,
                now.draft_tokens - base.draft_tokens,
                now.accepted - base.accepted,
                now.emitted - base.emitted,
            ];
            assert_eq!(found.map(Option::unwrap_or_default), done, "engine {engine}: {metrics}");
        }
    }

    fn read(&mut self) {
        let [points, deltas] = <[_; 2]>::try_from(self.exported.collect_each()).unwrap();
        for (name, value) in &points {
            assert!(value.is_finite(), "{name} is {value}");
            if name.contains("rate{") || name.contains("efficiency{") {
                assert!((0.0..=1.0).contains(value), "{name} is {value}");
            }
        }
        for (name, before) in self.last.iter().filter(|(name, _)| is_counter(name)) {
            let now = points.get(name);
            assert!(now.is_some_and(|now| now >= before), "{name} was {before}, is {now:?}");
        }
        for (engine, name) in ENGINES.iter().enumerate() {
            let point =
                |metric: &str| points.get(&format!("spec_decode.{metric}{{spec_decode.engine={name}}}")).copied();
            assert!(point("accepted_tokens") <= point("draft_tokens"), "engine {name}: {points:?}");
            if let Some(metrics) = self.handle.metrics(name) {
                let (accepted, tokens) = (metrics.accepted_tokens.unwrap_or(0), metrics.draft_tokens.unwrap_or(0));
                assert!(accepted <= tokens, "engine {name}: {metrics}");
            }
            if self.attached[engine].is_none() {
                assert_eq!(self.published(engine), self.model[engine], "engine {name}, counted by fields");
            }
        }
        for (name, value) in deltas.into_iter().filter(|(name, _)| is_counter(name)) {
            assert!(value >= 0.0, "{name} fell by {value}");
            *self.sums_of_deltas.entry(name).or_default() += value;
        }
        for (name, sum) in &self.sums_of_deltas {
            assert!((sum - points[name]).abs() < 1e-6, "{name}: deltas add up to {sum}, the total is {}", points[name]);
        }
        self.last = points;
    }

    fn end(mut self) {
        let dispatch = self.dispatch.clone();
        tracing::dispatcher::with_default(&dispatch, || (0..ENGINES.len()).for_each(|engine| self.end_steps(engine)));
        for device in &self.devices {
            device.fail_with(None);
            device.land_after(0);
            device.land();
        }
        assert!(self.flush(LONG), "everything works, so a flush does");
        assert!(self.flush(LONG), "so does a second one, and changes nothing");
        self.read();
    }
}

fn open(engine: usize, k: u8, drafts: u8, ragged: u8, by_source: bool) -> Step {
    let span = info_span!(
        parent: None,
        "spec_decode_step",
        engine = ENGINES[engine],
        num_spec_tokens = Empty,
        num_drafts = Empty,
        num_draft_tokens = Empty,
        num_accepted_tokens = Empty,
        num_emitted_tokens = Empty,
        num_discarded_draft_tokens = Empty,
    );
    let mut step = Step { span, engine, inside: 0, fields: [None; 6], by_source, has_worked: false };
    let (k, drafts) = (u64::from(k), u64::from(drafts));
    // Between one token per draft and k.
    let tokens = drafts + if k > 0 { u64::from(ragged) % (drafts * (k - 1) + 1) } else { 0 };
    let given = if by_source { 0b111 } else { ragged };
    for (field, value) in [k, drafts, tokens].into_iter().enumerate() {
        if given & 1 << field != 0 {
            step.span.record(FIELDS[field], value);
            step.fields[field] = Some(value);
        }
    }
    step
}

/// Runs the operations; also for the fuzzer, which chooses them by the code that they reach.
pub(crate) fn run(attached: [bool; ENGINES.len()], ops: &[Op]) {
    let mut world = World::new();
    for engine in (0..ENGINES.len()).filter(|engine| attached[*engine]) {
        world.run(&Op::Attach { engine, on_host: false });
    }
    for op in ops {
        world.run(op);
    }
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving(attached in any::<[bool; ENGINES.len()]>(), ops in prop::collection::vec(op(), 1..120)) {
        run(attached, &ops);
    }
}
