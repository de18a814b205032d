//! What the run came to: a table, a chart and the exported points, or all of it as one JSON object.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tracing_spec_decode::SpecDecodeMetrics;

use crate::engine::Counts;
use crate::exported::{Point, by_name};

const NUM_SPEC_TOKENS: &str = "spec_decode.num_spec_tokens";
const BAR_LEN: f64 = 40.0;

/// The same things three times: from the layer's handle, from the decode loop itself, from OpenTelemetry.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) metrics: SpecDecodeMetrics,
    pub(crate) counts: Counts,
    pub(crate) points: Vec<Point>,
    pub(crate) elapsed: Duration,
    /// How the models were made.
    pub(crate) models: String,
    /// What became of one sequence.
    pub(crate) sample: String,
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        let (metrics, counts) = (&self.metrics, &self.counts);
        let exported = self.points.iter().filter(|point| point.is_counter || point.name == NUM_SPEC_TOKENS);
        // A rate that is not a number becomes null.
        json!({
            "metrics": {
                "draft_acceptance_rate": metrics.draft_acceptance_rate(),
                "system_efficiency": metrics.system_efficiency(),
                "mean_acceptance_length": metrics.mean_acceptance_length(),
                "num_spec_tokens": metrics.num_spec_tokens,
                "drafts": metrics.drafts,
                "draft_tokens": metrics.draft_tokens,
                "accepted_tokens": metrics.accepted_tokens,
                "emitted_tokens": metrics.emitted_tokens,
                "draft_tokens_per_position": metrics.draft_per_position,
                "accepted_per_position": metrics.accepted_per_position,
            },
            "engine": {
                "draft_acceptance_rate": counts.draft_acceptance_rate(),
                "system_efficiency": counts.system_efficiency(),
                "mean_acceptance_length": counts.mean_acceptance_length(),
                "num_spec_tokens": counts.num_spec_tokens,
                "drafts": counts.drafts,
                "draft_tokens": counts.draft_tokens,
                "accepted_tokens": counts.accepted_tokens,
                "emitted_tokens": counts.emitted_tokens,
                "draft_tokens_per_position": counts.draft_tokens_per_position,
                "accepted_per_position": counts.accepted_per_position,
                "steps": counts.steps,
                "tokens": counts.tokens,
                "seconds": self.elapsed.as_secs_f64(),
            },
            "exported": by_name(exported),
            "window": {
                "draft_acceptance_rate": self.gauge("spec_decode.draft_acceptance_rate"),
                "system_efficiency": self.gauge("spec_decode.system_efficiency"),
                "mean_acceptance_length": self.gauge("spec_decode.mean_acceptance_length"),
                "num_spec_tokens": self.gauge(NUM_SPEC_TOKENS),
            },
        })
    }

    fn gauge(&self, name: &str) -> Option<Value> {
        self.points.iter().find(|point| point.name == name).map(|point| point.value.into())
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_run(out)?;
        self.write_metrics(out)?;
        self.write_positions(out)?;
        self.write_points(out)
    }

    fn write_run(&self, out: &mut impl Write) -> io::Result<()> {
        let seconds = self.elapsed.as_secs_f64();
        let (steps, tokens) = (grouped(self.counts.steps), grouped(self.counts.tokens));
        let pace = grouped((self.counts.tokens as f64 / seconds) as u64);
        writeln!(out, "{}", self.models)?;
        writeln!(out, "{steps} steps in {seconds:.2} s: {tokens} tokens, {pace} a second. One sequence:\n")?;
        for line in self.sample.lines() {
            writeln!(out, "  | {}", line.replace(char::is_control, " "))?;
        }
        Ok(())
    }

    fn write_metrics(&self, out: &mut impl Write) -> io::Result<()> {
        let (metrics, counts) = (&self.metrics, &self.counts);
        let count = |count: Option<u64>| count.map_or("-".to_owned(), grouped);
        let rate = |rate: f64| if rate.is_nan() { "-".to_owned() } else { format!("{rate:.4}") };
        let window = |name: &str| {
            let gauge =
                self.points.iter().find(|point| !point.is_counter && point.name == format!("spec_decode.{name}"));
            gauge.map_or("-".to_owned(), |point| point.value.to_string())
        };
        let rates = [
            ("draft_acceptance_rate", metrics.draft_acceptance_rate(), counts.draft_acceptance_rate()),
            ("system_efficiency", metrics.system_efficiency(), counts.system_efficiency()),
            ("mean_acceptance_length", metrics.mean_acceptance_length(), counts.mean_acceptance_length()),
        ];
        let totals = [
            ("num_spec_tokens", metrics.num_spec_tokens, counts.num_spec_tokens),
            ("drafts", metrics.drafts, Some(counts.drafts)),
            ("draft_tokens", metrics.draft_tokens, Some(counts.draft_tokens)),
            ("accepted_tokens", metrics.accepted_tokens, Some(counts.accepted_tokens)),
            ("emitted_tokens", metrics.emitted_tokens, Some(counts.emitted_tokens)),
        ];
        writeln!(out, "\n{:24}{:>14}{:>14}{:>14}", "", "metrics", "decode loop", "last window")?;
        for (name, metric, own) in rates {
            writeln!(out, "{name:24}{:>14}{:>14}{:>14}", rate(metric), rate(own), window(name))?;
        }
        for (name, metric, own) in totals {
            writeln!(out, "{name:24}{:>14}{:>14}", count(metric), count(own))?;
        }
        Ok(())
    }

    fn write_positions(&self, out: &mut impl Write) -> io::Result<()> {
        let rates = self.metrics.acceptance_rate_per_position();
        let accepted = self.metrics.accepted_per_position.iter().flatten();
        let drafted = self.metrics.draft_per_position.iter().flatten();
        if !rates.is_empty() {
            writeln!(out, "\nAccepted of those drafted at each position")?;
        }
        for (position, ((rate, accepted), drafted)) in rates.iter().zip(accepted).zip(drafted).enumerate() {
            let bar = "█".repeat((rate * BAR_LEN).round() as usize);
            let counts = format!("{} of {}", grouped(*accepted), grouped(*drafted));
            writeln!(out, "{position:4}  {bar:·<40}  {rate:.4}  {counts}")?;
        }
        Ok(())
    }

    fn write_points(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\nExported by OpenTelemetry")?;
        for point in &self.points {
            let attributes: Vec<String> =
                point.attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
            writeln!(out, "{:>14}  {} {{{}}}", point.value.to_string(), point.name, attributes.join(", "))?;
        }
        Ok(())
    }
}

/// A number as people read it: 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
