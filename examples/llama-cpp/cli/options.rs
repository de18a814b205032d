//! The command line.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lexopt::Arg;

pub(crate) const HELP: &str = "\
Continues a text with a GGUF model, decoding speculatively on llama.cpp, and shows what tracing-spec-decode makes of it.

Usage: spec-decode-llama --model FILE.gguf (--prompt TEXT | --prompt-file FILE)... [OPTIONS]

  --model FILE         the model whose text is wanted
  --prompt TEXT        what it continues; given several times, the sequences take the prompts in turn
  --prompt-file FILE   likewise, from a file
  --max-tokens N       tokens after the prompt, of each sequence                         [128]
  --parallel N         sequences decoded in one batch                                    [one a prompt]
  --temperature T      0 takes the likeliest token; above, speculative sampling          [0]
  --seed S             what is drawn; the next sequence takes S + 1, and so on           [0]

  --prompt-lookup N    draft from the text itself, by runs of up to N tokens             [3]
  --draft-model FILE   draft with another model of the same vocabulary instead
  --num-spec-tokens K  draft tokens per sequence and step                                [4]
  --dynamic-k          let K grow and shrink with acceptance, from 1 to 16 or, if it is larger, K
  --baseline           no speculation

  --context N          tokens of one sequence, its prompt included                       [what is asked for]
  --batch N            tokens of one pass                                                [512]
  --micro-batch N      tokens computed at once; 1 makes a pass bit-equal to single steps [the batch]
  --threads N                                                                            [one a processor]
  --json               one JSON object in place of text and table
  --help               this

OTEL_EXPORTER_OTLP_ENDPOINT=URL exports metrics and spans there, by OTLP over HTTP.
";

/// The largest k that a dynamic one grows to, unless it starts above.
const MAX_DYNAMIC_K: usize = 16;

#[derive(Debug)]
pub(crate) enum Command {
    Help,
    Decode(Options),
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) model: PathBuf,
    pub(crate) prompts: Vec<String>,
    pub(crate) max_tokens: usize,
    pub(crate) parallel: usize,
    pub(crate) temperature: f32,
    pub(crate) seed: u64,
    pub(crate) drafting: Drafting,
    pub(crate) num_spec_tokens: usize,
    /// Where k is dynamic: how far it grows.
    pub(crate) max_dynamic_k: Option<usize>,
    pub(crate) context: Option<usize>,
    pub(crate) batch: usize,
    pub(crate) micro_batch: usize,
    pub(crate) threads: usize,
    pub(crate) json: bool,
}

#[derive(Debug, PartialEq)]
pub(crate) enum Drafting {
    Off,
    PromptLookup(usize),
    Model(PathBuf),
}

/// Reads the arguments behind the program's name.
///
/// # Errors
///
/// Says what is wrong with them.
pub(crate) fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut given = Vec::new();
    let mut model = None;
    let mut prompts = Vec::new();
    let mut drafting = None;
    let (mut max_tokens, mut parallel, mut temperature, mut seed) = (128, None, 0.0, 0);
    let (mut num_spec_tokens, mut is_dynamic, mut json) = (4, false, false);
    let (mut context, mut batch, mut micro_batch, mut threads) = (None, 512, None, None);
    while let Some(argument) = parser.next()? {
        let name = match argument {
            Arg::Short('h') => "help".to_owned(),
            Arg::Long(name) => name.to_owned(),
            other => return Err(other.unexpected().into()),
        };
        match name.as_str() {
            "help" => return Ok(Command::Help),
            "model" => model = Some(parser.value()?.into()),
            "prompt" => prompts.push(string(&mut parser)?),
            "prompt-file" => prompts.push(read(Path::new(&parser.value()?))?),
            "max-tokens" => max_tokens = number(&mut parser, &name, 1..=1_000_000)?,
            "parallel" => parallel = Some(number(&mut parser, &name, 1..=256)?),
            "temperature" => temperature = number(&mut parser, &name, 0.0..=100.0)?,
            "seed" => seed = number(&mut parser, &name, 0..=u64::MAX)?,
            "prompt-lookup" => choose(&mut drafting, Drafting::PromptLookup(number(&mut parser, &name, 1..=64)?))?,
            "draft-model" => choose(&mut drafting, Drafting::Model(parser.value()?.into()))?,
            "baseline" => choose(&mut drafting, Drafting::Off)?,
            "num-spec-tokens" => num_spec_tokens = number(&mut parser, &name, 1..=1_000)?,
            "dynamic-k" => is_dynamic = true,
            "context" => context = Some(number(&mut parser, &name, 1..=1_000_000)?),
            "batch" => batch = number(&mut parser, &name, 1..=65_536)?,
            "micro-batch" => micro_batch = Some(number(&mut parser, &name, 1..=65_536)?),
            "threads" => threads = Some(number(&mut parser, &name, 1..=1_024)?),
            "json" => json = true,
            _ => return Err(Arg::Long(&name).unexpected().into()),
        }
        let may_repeat = name == "prompt" || name == "prompt-file";
        ensure!(may_repeat || !given.contains(&name), "--{name} is given twice");
        given.push(name);
    }
    let processors = || std::thread::available_parallelism().map_or(1, usize::from);
    ensure!(!prompts.is_empty(), "--prompt TEXT or --prompt-file FILE is missing");
    Ok(Command::Decode(Options {
        model: model.context("--model FILE is missing")?,
        max_tokens,
        parallel: parallel.unwrap_or(prompts.len()),
        prompts,
        temperature,
        seed,
        drafting: drafting.unwrap_or(Drafting::PromptLookup(3)),
        num_spec_tokens,
        max_dynamic_k: is_dynamic.then(|| num_spec_tokens.max(MAX_DYNAMIC_K)),
        context,
        batch,
        micro_batch: micro_batch.unwrap_or(batch).min(batch),
        threads: threads.unwrap_or_else(processors),
        json,
    }))
}

fn choose(drafting: &mut Option<Drafting>, chosen: Drafting) -> Result<()> {
    if drafting.replace(chosen).is_some() {
        bail!("--prompt-lookup, --draft-model and --baseline exclude each other");
    }
    Ok(())
}

fn number<T>(parser: &mut lexopt::Parser, name: &str, range: std::ops::RangeInclusive<T>) -> Result<T>
where
    T: FromStr + PartialOrd + Display,
{
    let text = string(parser)?;
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| anyhow!("--{name} takes a number from {} to {}, not {text:?}", range.start(), range.end()))
}

fn string(parser: &mut lexopt::Parser) -> Result<String> {
    parser.value()?.into_string().map_err(|value| anyhow!("{value:?} is not UTF-8"))
}

fn read(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {path:?}"))?;
    String::from_utf8(bytes).map_err(|_| anyhow!("{path:?} is not UTF-8 text"))
}
