//! The program around the engine: options, models, the layer, the decode loop, the table.

mod options;
mod report;
mod screen;
mod telemetry;
mod text;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use spec_decode_llama::engine::{Drafting, Engine, Settings};
use spec_decode_llama::lookahead::Lookahead;
use spec_decode_llama::model::{Model, Token};
use spec_decode_llama::runner::Capacity;
use spec_decode_llama::sampling::Method;
use spec_decode_llama::sequence::{End, Sequence};
use tracing::info_span;
use tracing_spec_decode::{EngineAttributes, Handle};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::options::{Command, HELP, Options};
use crate::report::{Report, Run, Text};
use crate::screen::{Screen, put};
use crate::telemetry::Telemetry;
use crate::text::{TextStream, text_of};

/// What the layer calls the engine that the run is about, and the one that it is compared with.
const ENGINE: &str = "0";
const BASELINE: &str = "baseline";

fn main() -> ExitCode {
    let result = options::parse(std::env::args_os().skip(1)).and_then(|command| match command {
        Command::Help => put(HELP),
        Command::Decode(options) => run(&options),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spec-decode-llama: {}", format!("{error:#}").replace(char::is_control, " "));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let model = Model::load(&options.model)?;
    let draft_model = match &options.drafting {
        options::Drafting::Model(path) => Some(Model::load(path)?),
        _ => None,
    };
    let prompts: Vec<Vec<Token>> = options.prompts.iter().map(|prompt| model.tokenize(prompt)).collect();
    let settings = settings(options, &model, draft_model.as_ref(), &prompts);
    let mut engine = Engine::new(&model, &prompts, settings)?;

    let telemetry = Telemetry::start()?;
    let (layer, handle) = tracing_spec_decode::builder()
        .with_max_engines(2)
        .with_max_positions(settings.lookahead.max())
        .with_meter_provider(&telemetry.meters)
        .build()?;
    // The exporter's own spans, and llama.cpp's, stay out of the traces.
    let ours = Targets::new().with_target("spec_decode_llama", LevelFilter::INFO);
    let traces = telemetry.tracer().map(|tracer| tracing_opentelemetry::layer().with_tracer(tracer).with_filter(ours));
    tracing_subscriber::registry().with(layer).with(traces).init();
    handle.describe(ENGINE, attributes(&model, &settings))?;
    let attached = handle.attach(ENGINE, engine.counters.source())?;

    let run = decode(&model, &mut engine, &handle, Screen::new(!options.json))?;
    let baseline = match settings.drafting {
        Drafting::Off => None,
        _ => {
            let settings = Settings { name: BASELINE, drafting: Drafting::Off, ..settings };
            Some(decode(&model, &mut Engine::new(&model, &prompts, settings)?, &handle, Screen::new(false))?)
        }
    };

    handle.flush(Duration::from_secs(5))?;
    let metrics = handle.metrics(ENGINE).unwrap_or_default();
    let report = Report { metrics, steps: handle.status(ENGINE).steps, run, baseline };
    put(&if options.json { format!("{}\n", report.json()) } else { report.table() })?;
    drop(attached);
    telemetry.shutdown()
}

fn settings<'m>(
    options: &Options,
    model: &'m Model,
    draft_model: Option<&'m Model>,
    prompts: &[Vec<Token>],
) -> Settings<'m> {
    let asked_for = prompts.iter().map(Vec::len).max().unwrap_or_default() + options.max_tokens;
    Settings {
        name: ENGINE,
        drafting: match (&options.drafting, draft_model) {
            (options::Drafting::PromptLookup(max_ngram), _) => Drafting::PromptLookup(*max_ngram),
            (_, Some(draft)) => Drafting::Model(draft),
            (_, None) => Drafting::Off,
        },
        lookahead: match options.max_dynamic_k {
            Some(max) => Lookahead::dynamic(options.num_spec_tokens, max),
            None => Lookahead::fixed(options.num_spec_tokens),
        },
        method: if options.temperature > 0.0 { Method::Sampling(options.temperature) } else { Method::Greedy },
        max_tokens: options.max_tokens,
        seed: options.seed,
        capacity: Capacity {
            sequences: options.parallel,
            context: options.context.unwrap_or(asked_for).min(model.max_context()),
            batch: options.batch,
            micro_batch: options.micro_batch,
            threads: options.threads,
        },
    }
}

fn attributes(model: &Model, settings: &Settings<'_>) -> EngineAttributes {
    let attributes = EngineAttributes::new().with_model(&model.name);
    match settings.drafting {
        Drafting::Off => attributes,
        Drafting::PromptLookup(_) => attributes.with_method("prompt_lookup"),
        Drafting::Model(draft) => attributes.with_method("draft_model").with_draft_model(&draft.name),
    }
}

/// Decodes to the end; the first text is shown as it comes.
fn decode(model: &Model, engine: &mut Engine<'_>, handle: &Handle, mut screen: Screen) -> Result<Run> {
    let _request = info_span!("request", sequences = engine.sequences().len()).entered();
    let start = Instant::now();
    engine.prefill()?;
    let prefill = start.elapsed();

    let start = Instant::now();
    let mut stream = TextStream::default();
    while !engine.is_done() {
        engine.step()?;
        screen.text(&stream.next(model, engine.sequences()[0].emitted()))?;
        screen.live(|| live_line(engine, handle, start.elapsed()))?;
    }
    let decode = start.elapsed();
    screen.end()?;
    let texts = engine.sequences().iter().map(|sequence| text(model, sequence)).collect();
    let prompt_tokens = engine.sequences().iter().map(Sequence::prompt_len).sum();
    Ok(Run { counts: engine.counts().clone(), prompt_tokens, prefill, decode, texts })
}

fn live_line(engine: &Engine<'_>, handle: &Handle, elapsed: Duration) -> String {
    let tokens = engine.counts().tokens;
    let pace = tokens as f64 / elapsed.as_secs_f64();
    let metrics = handle.metrics(ENGINE).unwrap_or_default();
    let Some(k) = metrics.num_spec_tokens.filter(|_| metrics.drafts > Some(0)) else {
        return format!("{tokens} tokens, {pace:.1}/s; no drafts");
    };
    format!(
        "{tokens} tokens, {pace:.1}/s; k {k}, acceptance {:.3}, efficiency {:.3}, length {:.2}",
        metrics.draft_acceptance_rate(),
        metrics.system_efficiency(),
        metrics.mean_acceptance_length(),
    )
}

fn text(model: &Model, sequence: &Sequence) -> Text {
    Text {
        text: text_of(model, sequence.emitted()),
        tokens: sequence.emitted().iter().map(|token| token.0).collect(),
        end: match sequence.end() {
            Some(End::EndOfText) => "end_of_text",
            _ => "limit",
        },
    }
}
