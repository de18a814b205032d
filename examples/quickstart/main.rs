//! Speculative decoding for real, on the CPU and with no set-up at all: `cargo run --release --example quickstart`.
//!
//! How it is wired, and no more: the layer and its handle, the engine's counters attached, the decode loop, the report.
//! `engine` has the span; `speculative` the method; `telemetry` where the metrics go.

mod engine;
mod exported;
mod language_model;
mod options;
mod otlp;
mod progress;
mod report;
mod rng;
mod scrape;
mod speculative;
mod sweep;
mod telemetry;
mod text;
mod vocabulary;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tracing_spec_decode::{Attached, Handle, HostCounters};
use tracing_subscriber::prelude::*;

use crate::engine::{Engine, Models, Plan};
use crate::language_model::LanguageModel;
use crate::options::{Command, HELP, Options};
use crate::progress::Progress;
use crate::report::Report;
use crate::scrape::Scrape;
use crate::telemetry::Telemetry;
use crate::vocabulary::{Token, Vocabulary};

const TARGET_ORDER: usize = 6;
const DRAFT_ORDER: usize = 4;
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let result = options::parse(std::env::args_os().skip(1)).and_then(|command| match command {
        Command::Help => print(|out| out.write_all(HELP.as_bytes())),
        Command::Decode(options) => run(&options),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            say(&message);
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let text = text::read(options.text.as_deref())?;
    let registry = options.serve.map(|_| prometheus::Registry::new());
    let telemetry = Telemetry::start(options.interval, registry.as_ref())?;
    let scrape = options.serve.zip(registry).map(|(address, registry)| Scrape::serve(address, registry)).transpose()?;
    if let Some(scrape) = &scrape {
        say(&format!("serving {}", scrape.url()));
    }

    let (layer, handle) = tracing_spec_decode::builder()
        .with_interval(options.interval)
        .with_meter_provider(telemetry.provider())
        .build()
        .map_err(|error| error.to_string())?;
    tracing_subscriber::registry().with(layer).try_init().map_err(|error| error.to_string())?;

    let attached = if options.sweep.is_empty() {
        let mut counters = HostCounters::new();
        let attached = attach(&handle, "0", &counters)?;
        let mut report = decode(options, &text, &handle, &mut counters)?;
        report.points = telemetry.last_flush();
        if options.json {
            print(|out| writeln!(out, "{}", report.json()))?;
        } else {
            print(|out| report.write(out))?;
        }
        vec![attached]
    } else {
        let (mut sweep, attached) = sweep::run(options, &text, &handle)?;
        sweep.points = telemetry.last_flush();
        if options.json {
            print(|out| writeln!(out, "{}", sweep.json()))?;
        } else {
            print(|out| sweep.write(out))?;
        }
        attached
    };
    if let Some(outcome) = telemetry.otlp_outcome() {
        say(&outcome.unwrap_or_else(|failure| failure));
    }
    if let Some(scrape) = scrape {
        say(&format!("still serving {}, stop with Ctrl-C", scrape.url()));
        scrape.join();
    }
    drop(attached);
    telemetry.shutdown();
    Ok(())
}

/// Has an engine's counters read by the layer.
fn attach(handle: &Handle, engine: &str, counters: &HostCounters) -> Result<Attached, String> {
    handle.attach(engine, counters.source()).map_err(|error| error.to_string())
}

/// Makes the two models of a text.
fn train(vocabulary: &Vocabulary, tokens: &[Token]) -> Models {
    let train = |order| LanguageModel::train(tokens, vocabulary.len(), order);
    Models { target: train(TARGET_ORDER), draft: train(DRAFT_ORDER) }
}

/// Decodes, and brings together what the layer and the loop itself have counted.
fn decode(options: &Options, text: &[u8], handle: &Handle, counters: &mut HostCounters) -> Result<Report, String> {
    let vocabulary = Vocabulary::of(text);
    let tokens = vocabulary.encode(text);
    let models = train(&vocabulary, &tokens);
    let plan = Plan { num_spec_tokens: options.num_spec_tokens, ..Plan::of(options) };
    let mut engine = Engine::new(&models, &tokens, plan);

    let progress = Progress::start(handle.clone(), options.steps, options.interval);
    let start = Instant::now();
    for _ in 0..options.steps {
        engine.step(counters);
    }
    let elapsed = start.elapsed();
    if let Some(progress) = progress {
        progress.stop();
    }
    handle.flush(FLUSH_TIMEOUT).map_err(|error| error.to_string())?;

    Ok(Report {
        metrics: handle.metrics("0").unwrap_or_default(),
        counts: engine.counts().clone(),
        points: Vec::new(),
        elapsed,
        models: format!(
            "A {TARGET_ORDER}-gram model is the target, a {DRAFT_ORDER}-gram model drafts: {} bytes of text, {} different.",
            report::grouped(text.len() as u64),
            vocabulary.len(),
        ),
        sample: vocabulary.decode(engine.sample()),
    })
}

impl Plan {
    fn of(options: &Options) -> Self {
        let Options { batch, seed, draft_pass, target_pass, .. } = *options;
        Self { batch, seed, draft_pass, target_pass, ..Self::default() }
    }
}

/// To stdout; a reader that has seen enough is no error.
fn print(write: impl FnOnce(&mut io::StdoutLock<'static>) -> io::Result<()>) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("cannot write to stdout: {error}")),
        _ => Ok(()),
    }
}

/// To stderr, a line.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "quickstart: {message}");
}
