//! One engine process of a fleet, as `observe/` needs it: metrics and traces by OTLP, counters that have to be copied
//! from somewhere else, a decode loop at a steady pace. What it decodes is drawn at random; what it counts is exact.
//!
//! `cargo run --release --features otel-trace --example replica -- --help`

mod device;
mod telemetry;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::json;
use tracing_spec_decode::{EngineAttributes, step_span};

use crate::device::{Device, Draft};
use crate::telemetry::Telemetry;

const HELP: &str = "\
Runs one simulated engine that reports by OTLP, and prints what it did as JSON lines, the last word last.

Usage: replica [OPTIONS]

  --seconds S      how long                                                  [20]
  --pace MICROS    time from step to step                                    [1000]
  --seed N         what is drawn                                             [0]
  --accept P       how likely a token is accepted after an accepted one   [0.7]
  --model NAME     spec_decode.model                                         [toy-8b]
  --revision NAME  of the draft model, in spec_decode.info                   [r1]
  --interval S     between two copies of the counters                        [0.5]
  --latency MS     how long a copy takes                                     [1]
  --say MS         from line to line                                         [1000]
  --misreport N    each Nth step reports more draft tokens than k allows     [never]
  --trace-all      every step has a span, not only those with a collection

OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL (grpc, http/protobuf), OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES and OTEL_METRIC_EXPORT_INTERVAL are honoured.
";

const NUM_SPEC_TOKENS: u64 = 4;
const BATCH: usize = 8;

struct Options {
    seconds: f64,
    pace: Duration,
    seed: u64,
    accept: f64,
    model: String,
    revision: String,
    interval: f64,
    latency: Duration,
    say: Duration,
    misreport: u64,
    trace_all: bool,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match parse().and_then(|options| options.map_or_else(|| say(HELP), |options| run(&options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "replica: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parse() -> Result<Option<Options>, Error> {
    use lexopt::prelude::*;
    let mut options = Options {
        seconds: 20.0,
        pace: Duration::from_micros(1_000),
        seed: 0,
        accept: 0.7,
        model: "toy-8b".to_owned(),
        revision: "r1".to_owned(),
        interval: 0.5,
        latency: Duration::from_millis(1),
        say: Duration::from_secs(1),
        misreport: 0,
        trace_all: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("help") | Short('h') => return Ok(None),
            Long("seconds") => options.seconds = parser.value()?.parse()?,
            Long("pace") => options.pace = Duration::from_micros(parser.value()?.parse()?),
            Long("seed") => options.seed = parser.value()?.parse()?,
            Long("accept") => options.accept = parser.value()?.parse()?,
            Long("model") => options.model = parser.value()?.string()?,
            Long("revision") => options.revision = parser.value()?.string()?,
            Long("interval") => options.interval = parser.value()?.parse()?,
            Long("latency") => options.latency = Duration::from_millis(parser.value()?.parse()?),
            Long("say") => options.say = Duration::from_millis(parser.value()?.parse()?),
            Long("misreport") => options.misreport = parser.value()?.parse()?,
            Long("trace-all") => options.trace_all = true,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(options))
}

fn run(options: &Options) -> Result<(), Error> {
    let telemetry = Telemetry::start()?;
    let (layer, handle) = tracing_spec_decode::builder()
        .with_interval(Duration::try_from_secs_f64(options.interval)?)
        .with_meter_provider(&telemetry.metrics)
        .with_tracer_provider(&telemetry.traces)
        .build()?;
    // A step of this engine takes `pace`; three of them are far enough to look ahead.
    let filter = (!options.trace_all).then(|| handle.collecting_steps(options.pace * 3));
    telemetry.install(layer, filter)?;
    let described = EngineAttributes::new()
        .with_model(&options.model)
        .with_method("draft_model")
        .with_draft_model_revision(&options.revision)
        .with_num_spec_tokens(NUM_SPEC_TOKENS as u32);
    handle.describe("0", described)?;

    let device = Device::new(NUM_SPEC_TOKENS as usize);
    let attached = handle.attach("0", device.source(options.latency))?;
    decode(options, &device)?;
    handle.flush(Duration::from_secs(5))?;
    drop(attached);
    telemetry.shutdown();
    Ok(())
}

fn decode(options: &Options, device: &Device) -> Result<(), Error> {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let start = Instant::now();
    let (mut steps, mut discarded, mut said) = (0_u64, 0_u64, Instant::now());
    while start.elapsed().as_secs_f64() < options.seconds {
        let drafts: Vec<Draft> =
            (0..BATCH).map(|_| Draft::random(NUM_SPEC_TOKENS as u32, options.accept, &mut random)).collect();
        let tokens: u64 = drafts.iter().map(|draft| u64::from(draft.drafted)).sum();
        let thrown_away = u64::from(random.u32(0..100) == 0);
        let misreports = options.misreport > 0 && steps % options.misreport == 0;
        let span = step_span!(
            num_spec_tokens = NUM_SPEC_TOKENS,
            num_drafts = drafts.len() as u64,
            num_draft_tokens = if misreports { tokens * 10 } else { tokens },
            num_discarded_draft_tokens = thrown_away,
        );
        span.in_scope(|| {
            drafts.iter().for_each(|draft| device.count(draft));
            std::thread::sleep(options.pace);
        });
        drop(span);
        steps += 1;
        discarded += thrown_away;
        if said.elapsed() >= options.say {
            said = Instant::now();
            report(steps, discarded, device, false)?;
        }
    }
    report(steps, discarded, device, true)
}

fn report(steps: u64, discarded: u64, device: &Device, is_last: bool) -> Result<(), Error> {
    let counts = device.counts();
    let line = json!({
        "last": is_last,
        "steps": steps,
        "drafts": counts.drafts,
        "draft_tokens": counts.draft_tokens,
        "accepted_tokens": counts.accepted,
        "emitted_tokens": counts.emitted,
        "discarded_draft_tokens": discarded,
        "accepted_tokens_per_position": counts.accepted_per_position,
        "draft_tokens_per_position": counts.draft_per_position,
    });
    say(&format!("{line}\n"))
}

fn say(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
