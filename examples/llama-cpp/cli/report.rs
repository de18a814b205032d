//! What the run came to: a table, or one JSON object.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};
use spec_decode_llama::counts::Counts;
use tracing_spec_decode::SpecDecodeMetrics;

const BAR_LEN: f64 = 40.0;

/// One way of decoding the prompts.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) counts: Counts,
    pub(crate) prompt_tokens: usize,
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
    pub(crate) texts: Vec<Text>,
}

#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) tokens: Vec<i32>,
    pub(crate) end: &'static str,
}

#[derive(Debug)]
pub(crate) struct Report {
    /// From the layer's handle.
    pub(crate) metrics: SpecDecodeMetrics,
    /// Steps that the layer saw.
    pub(crate) steps: u64,
    pub(crate) run: Run,
    /// The same without speculation.
    pub(crate) baseline: Option<Run>,
}

impl Run {
    fn tokens_per_second(&self) -> f64 {
        self.counts.tokens as f64 / self.decode.as_secs_f64()
    }

    fn json(&self) -> Value {
        let text = |text: &Text| json!({ "text": text.text, "tokens": text.tokens, "end": text.end });
        json!({
            "steps": self.counts.steps,
            "drafts": self.counts.drafts,
            "draft_tokens": self.counts.draft_tokens,
            "accepted_tokens": self.counts.accepted_tokens,
            "emitted_tokens": self.counts.emitted_tokens,
            "draft_tokens_per_position": self.counts.draft_tokens_per_position,
            "accepted_per_position": self.counts.accepted_per_position,
            "tokens": self.counts.tokens,
            "prompt_tokens": self.prompt_tokens,
            "tokens_per_second": self.tokens_per_second(),
            "prefill_seconds": self.prefill.as_secs_f64(),
            "decode_seconds": self.decode.as_secs_f64(),
            "draft_seconds": self.counts.drafting.as_secs_f64(),
            "verify_seconds": self.counts.verifying.as_secs_f64(),
            "texts": self.texts.iter().map(text).collect::<Vec<_>>(),
        })
    }
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        let metrics = &self.metrics;
        // A rate that is not a number becomes null.
        json!({
            "metrics": {
                "steps": self.steps,
                "drafts": metrics.drafts,
                "draft_tokens": metrics.draft_tokens,
                "accepted_tokens": metrics.accepted_tokens,
                "emitted_tokens": metrics.emitted_tokens,
                "draft_tokens_per_position": metrics.draft_per_position,
                "accepted_per_position": metrics.accepted_per_position,
                "num_spec_tokens": metrics.num_spec_tokens,
                "draft_acceptance_rate": metrics.draft_acceptance_rate(),
                "system_efficiency": metrics.system_efficiency(),
                "mean_acceptance_length": metrics.mean_acceptance_length(),
            },
            "engine": self.run.json(),
            "baseline": self.baseline.as_ref().map(Run::json),
        })
    }

    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        // Writing to a string cannot fail.
        let _ = self.speed(&mut table);
        let _ = self.metrics(&mut table);
        let _ = self.positions(&mut table);
        table
    }

    fn speed(&self, out: &mut String) -> std::fmt::Result {
        let run = |out: &mut String, name: &str, run: &Run| {
            let counts = &run.counts;
            let share = |part: Duration| 100.0 * part.as_secs_f64() / run.decode.as_secs_f64();
            let (tokens, steps, speed) = (counts.tokens, counts.steps, run.tokens_per_second());
            let (draft, verify) = (share(counts.drafting), share(counts.verifying));
            writeln!(out, "{name:20}{tokens:>10}{steps:>10}{speed:>14.1}{draft:>10.1} %{verify:>10.1} %")
        };
        writeln!(
            out,
            "\n{:20}{:>10}{:>10}{:>14}{:>12}{:>12}",
            "", "tokens", "steps", "tokens/s", "drafting", "verifying"
        )?;
        let is_speculative = self.run.counts.drafts > 0 || self.baseline.is_some();
        run(out, if is_speculative { "with speculation" } else { "without" }, &self.run)?;
        if let Some(baseline) = &self.baseline {
            run(out, "without", baseline)?;
            writeln!(out, "{:20}{:>34.2}", "ratio", self.run.tokens_per_second() / baseline.tokens_per_second())?;
        }
        let (prompt, seconds) = (self.run.prompt_tokens, self.run.prefill.as_secs_f64());
        writeln!(out, "{:20}{prompt:>10}{:>10}{:>14.1}", "prompt", "", prompt as f64 / seconds)
    }

    fn metrics(&self, out: &mut String) -> std::fmt::Result {
        let (metrics, counts) = (&self.metrics, &self.run.counts);
        let count = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        writeln!(out, "\n{:24}{:>14}{:>14}", "", "metrics", "decode loop")?;
        for (name, metric, own) in [
            ("steps", Some(self.steps), counts.steps),
            ("drafts", metrics.drafts, counts.drafts),
            ("draft_tokens", metrics.draft_tokens, counts.draft_tokens),
            ("accepted_tokens", metrics.accepted_tokens, counts.accepted_tokens),
            ("emitted_tokens", metrics.emitted_tokens, counts.emitted_tokens),
        ] {
            writeln!(out, "{name:24}{:>14}{own:>14}", count(metric))?;
        }
        for (name, rate) in [
            ("draft_acceptance_rate", metrics.draft_acceptance_rate()),
            ("system_efficiency", metrics.system_efficiency()),
            ("mean_acceptance_length", metrics.mean_acceptance_length()),
        ] {
            let rate = if rate.is_nan() { "-".to_owned() } else { format!("{rate:.4}") };
            writeln!(out, "{name:24}{rate:>14}")?;
        }
        Ok(())
    }

    fn positions(&self, out: &mut String) -> std::fmt::Result {
        let rates = self.metrics.acceptance_rate_per_position();
        let accepted = self.metrics.accepted_per_position.iter().flatten();
        let drafted = self.metrics.draft_per_position.iter().flatten();
        let mut rows = rates.iter().zip(accepted.zip(drafted)).enumerate().peekable();
        if rows.peek().is_some() {
            writeln!(out, "\nAccepted of those drafted at each position")?;
        }
        for (position, (rate, (accepted, drafted))) in rows {
            let bar = "█".repeat((rate * BAR_LEN).round() as usize);
            writeln!(out, "{position:4}  {bar:·<40}  {rate:.4}  {accepted} of {drafted}")?;
        }
        Ok(())
    }
}
