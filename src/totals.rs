//! All engines' exported numbers, for a metrics system other than OpenTelemetry.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::anomaly::{self, Anomaly};
use crate::attributes::EngineAttributes;
use crate::engine::Engine;
use crate::engine_totals;
use crate::handle::PATIENCE;
use crate::metrics::{GpuTotals, StepTotals};
use crate::outcome::{Outcome, Reason};
use crate::published::{gave, word};
use crate::quantity::Quantity;
use crate::shared::Shared;

/// What the layer has counted, all engines together. Nothing in it ever falls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Each engine's numbers, by name.
    pub engines: Vec<EngineTotals>,
    /// Anomalies that belong to no engine, by type; those that happened.
    pub anomalies: Vec<(&'static str, u64)>,
}

/// One engine's exported counters, all of one instant. `None` is a quantity that nobody has given yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineTotals {
    /// The engine's name.
    pub engine: String,
    /// Its attributes.
    pub attributes: EngineAttributes,
    /// Steps closed that had drafts, and what they took.
    pub drafted_steps: StepTotals,
    /// Steps closed that had none.
    pub plain_steps: StepTotals,
    /// Time inside the draft spans of steps with drafts; `None` where no step had one.
    pub draft_time: Option<Duration>,
    /// Time inside the verify spans of steps with drafts; `None` where no step had one.
    pub verify_time: Option<Duration>,
    /// Time on the device, of sampled steps.
    pub gpu: GpuTotals,
    /// Sequences whose drafts were verified.
    pub drafts: u64,
    /// Tokens submitted to verification.
    pub draft_tokens: u64,
    /// The accepted prefix of each draft, summed.
    pub accepted_tokens: u64,
    /// Tokens emitted by the drafted sequences.
    pub emitted_tokens: Option<u64>,
    /// Tokens drafted, but never verified.
    pub discarded_draft_tokens: Option<u64>,
    /// Accepted tokens by draft position.
    pub accepted_per_position: Option<Vec<u64>>,
    /// Draft tokens by draft position.
    pub draft_per_position: Option<Vec<u64>>,
    /// Collections by outcome and `error.type`; those that happened.
    pub collections: Vec<(&'static str, Option<&'static str>, u64)>,
    /// Anomalies by type; those that happened.
    pub anomalies: Vec<(&'static str, u64)>,
}

impl Totals {
    pub(crate) fn of(shared: &Shared) -> Self {
        let mut engines: Vec<_> = shared.engines.iter().filter_map(|engine| EngineTotals::of(engine, shared)).collect();
        engines.sort_by(|one, other| one.engine.cmp(&other.engine));
        let anomalies = [
            (anomaly::ENGINE_REFUSED, &shared.engine_refused),
            (anomaly::OPEN_STEPS_OVER_BOUND, &shared.open_steps_over_bound),
        ];
        let anomalies = anomalies.map(|(name, count)| (name, count.load(Ordering::Relaxed)));
        Self { engines, anomalies: anomalies.into_iter().filter(|(_, count)| *count > 0).collect() }
    }
}

impl EngineTotals {
    /// `None` where the engine's words never stood still.
    fn of(engine: &Engine, shared: &Shared) -> Option<Self> {
        let reading = engine.published.read_within(PATIENCE)?;
        let words = &reading.words;
        let total = |quantity: Quantity| words[word::TOTALS.wrapping_add(quantity as usize)];
        let given = |bit: u64| words[word::GAVE] & bit != 0;
        let totals = engine_totals::Totals::of(&reading);
        let [draft, verify] = totals.steps.phase_ticks;
        let phase = |bit: u64, ticks: u64| given(bit).then(|| shared.ticks.duration(ticks));
        let metrics = totals.minus(&engine_totals::Totals::default(), &shared.ticks);
        let collections = Outcome::ALL.into_iter().flat_map(|outcome| {
            let reasons = Reason::ALL.into_iter();
            reasons.map(move |reason| (outcome, reason, word::collection(outcome, reason)))
        });
        let anomalies = Anomaly::ALL.into_iter();
        let anomalies =
            anomalies.map(|anomaly| (anomaly.name(), words[word::ANOMALIES.wrapping_add(anomaly as usize)]));
        let contended = engine.hot.contended.load(Ordering::Relaxed);
        Some(Self {
            engine: engine.name.to_string(),
            attributes: engine.attributes.clone(),
            drafted_steps: metrics.drafted_steps,
            plain_steps: metrics.plain_steps,
            draft_time: phase(gave::DRAFT_TIME, draft),
            verify_time: phase(gave::VERIFY_TIME, verify),
            gpu: metrics.gpu,
            drafts: total(Quantity::Drafts),
            draft_tokens: total(Quantity::DraftTokens),
            accepted_tokens: total(Quantity::Accepted),
            emitted_tokens: metrics.emitted_tokens,
            discarded_draft_tokens: given(gave::DISCARDED).then(|| words[word::DISCARDED]),
            accepted_per_position: metrics.accepted_per_position,
            draft_per_position: metrics.draft_per_position,
            collections: collections
                .map(|(outcome, reason, place)| {
                    let elsewhere =
                        if place == word::collection(Outcome::Skipped, Reason::Contended) { contended } else { 0 };
                    (outcome.name(), reason.name(), words[place].saturating_add(elsewhere))
                })
                .filter(|(_, _, count)| *count > 0)
                .collect(),
            anomalies: anomalies.filter(|(_, count)| *count > 0).collect(),
        })
    }
}
