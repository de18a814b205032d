//! Each k by an engine of its own: what was measured, and what follows from it.

use std::io::{self, Write};

use serde_json::{Value, json};
use tracing_spec_decode::{Attached, Handle, HostCounters, Payoff, SpecDecodeMetrics};

use crate::engine::{Engine, Plan};
use crate::exported::Point;
use crate::options::Options;
use crate::vocabulary::Vocabulary;
use crate::{FLUSH_TIMEOUT, attach, train};

/// One step of so many has no drafts.
const PLAIN_EVERY: u64 = 4;

/// What the sweep came to.
#[derive(Debug)]
pub(crate) struct Sweep {
    runs: Vec<Run>,
    pub(crate) points: Vec<Point>,
}

/// What one k came to.
#[derive(Debug)]
struct Run {
    num_spec_tokens: u64,
    metrics: SpecDecodeMetrics,
}

/// Decodes with each k. The guards keep the engines' counters attached.
pub(crate) fn run(options: &Options, text: &[u8], handle: &Handle) -> Result<(Sweep, Vec<Attached>), String> {
    let vocabulary = Vocabulary::of(text);
    let tokens = vocabulary.encode(text);
    let models = train(&vocabulary, &tokens);
    let plan = |num_spec_tokens: usize| Plan {
        engine: name(num_spec_tokens),
        num_spec_tokens,
        plain_every: PLAIN_EVERY,
        ..Plan::of(options)
    };
    let mut engines: Vec<_> = options
        .sweep
        .iter()
        .map(|&num_spec_tokens| (Engine::new(&models, &tokens, plan(num_spec_tokens)), HostCounters::new()))
        .collect();
    let attached = options
        .sweep
        .iter()
        .zip(&engines)
        .map(|(&num_spec_tokens, (_, counters))| attach(handle, &name(num_spec_tokens), counters))
        .collect::<Result<_, _>>()?;
    for _ in 0..options.steps {
        // A step of each in turn: what else the machine does slows all of them alike.
        engines.iter_mut().for_each(|(engine, counters)| engine.step(counters));
    }
    handle.flush(FLUSH_TIMEOUT).map_err(|error| error.to_string())?;
    let run = |&num_spec_tokens: &usize| Run {
        num_spec_tokens: num_spec_tokens as u64,
        metrics: handle.metrics(&name(num_spec_tokens)).unwrap_or_default(),
    };
    Ok((Sweep::new(options.sweep.iter().map(run).collect()), attached))
}

/// The engine of this k.
fn name(num_spec_tokens: usize) -> String {
    format!("k={num_spec_tokens}")
}

impl Run {
    /// Tokens per second of the steps that this k is about.
    fn tokens_per_second(&self) -> Option<f64> {
        let payoff = self.metrics.payoff();
        if self.num_spec_tokens == 0 {
            payoff.tokens_per_second_without_drafts()
        } else {
            payoff.tokens_per_second_with_drafts()
        }
    }

    fn measured_speedup(&self) -> Option<f64> {
        let payoff = self.metrics.payoff();
        if self.num_spec_tokens == 0 { Some(1.0) } else { payoff.speedup() }
    }
}

impl Sweep {
    /// All are held against the plain steps of all.
    fn new(mut runs: Vec<Run>) -> Self {
        let all = runs.iter().map(|run| run.metrics.clone()).reduce(|all, run| all.merged(&run)).unwrap_or_default();
        runs.iter_mut().for_each(|run| run.metrics.plain_steps = all.plain_steps);
        Self { runs, points: Vec::new() }
    }

    /// What all are expected from: the largest k has seen the most positions.
    fn reference(&self) -> Option<Payoff> {
        self.runs.iter().max_by_key(|run| run.num_spec_tokens).map(|run| run.metrics.payoff())
    }

    fn expected_speedup(&self, num_spec_tokens: u64) -> Option<f64> {
        self.reference()?.expected_speedup(num_spec_tokens).map(|estimate| estimate.value)
    }

    /// The k of those tried for which this is the largest.
    fn best(&self, speedup: impl Fn(&Run) -> Option<f64>) -> Option<u64> {
        let known = self.runs.iter().filter_map(|run| Some((run.num_spec_tokens, speedup(run)?)));
        known.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(num_spec_tokens, _)| num_spec_tokens)
    }

    fn best_measured(&self) -> Option<u64> {
        self.best(Run::measured_speedup)
    }

    fn best_expected(&self) -> Option<u64> {
        self.best(|run| self.expected_speedup(run.num_spec_tokens))
    }

    pub(crate) fn json(&self) -> Value {
        let run = |run: &Run| {
            let metrics = &run.metrics;
            json!({
                "engine": format!("k={}", run.num_spec_tokens),
                "num_spec_tokens": run.num_spec_tokens,
                "drafts": metrics.drafts,
                "draft_tokens": metrics.draft_tokens,
                "accepted_tokens": metrics.accepted_tokens,
                "emitted_tokens": metrics.emitted_tokens,
                "draft_acceptance_rate": metrics.draft_acceptance_rate(),
                "mean_acceptance_length": metrics.mean_acceptance_length(),
                "drafted_steps": metrics.drafted_steps.steps,
                "plain_steps": metrics.plain_steps.steps,
                "tokens_per_second": run.tokens_per_second(),
                "measured_speedup": run.measured_speedup(),
                "expected_speedup": self.expected_speedup(run.num_spec_tokens),
            })
        };
        let points = self.points.iter().map(|point| {
            let attributes: serde_json::Map<_, _> =
                point.attributes.iter().map(|(name, value)| (name.clone(), value.to_string().into())).collect();
            json!({ "name": point.name, "attributes": attributes, "value": Value::from(point.value) })
        });
        json!({
            "sweep": self.runs.iter().map(run).collect::<Vec<_>>(),
            "best": { "measured": self.best_measured(), "expected": self.best_expected() },
            "exported": points.collect::<Vec<_>>(),
        })
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let known = |value: Option<f64>, digits: usize| match value {
            Some(value) if value.is_finite() => format!("{value:.digits$}"),
            _ => "-".to_owned(),
        };
        writeln!(
            out,
            "{:>4}{:>14}{:>10}{:>14}{:>12}{:>12}",
            "k", "acceptance", "length", "tokens/s", "measured", "expected"
        )?;
        for run in &self.runs {
            let k = run.num_spec_tokens;
            let best = if self.best_measured() == Some(k) { "  best" } else { "" };
            let also = if self.best_expected() == Some(k) { "  best expected" } else { "" };
            writeln!(
                out,
                "{k:>4}{:>14}{:>10}{:>14}{:>12}{:>12}{best}{also}",
                known(Some(run.metrics.draft_acceptance_rate()), 4),
                known(Some(run.metrics.mean_acceptance_length()), 3),
                known(run.tokens_per_second(), 1),
                known(run.measured_speedup(), 3),
                known(self.expected_speedup(k), 3),
            )?;
        }
        match self.reference() {
            Some(payoff) => writeln!(out, "\nExpected from the largest k: {payoff}"),
            None => Ok(()),
        }
    }
}
