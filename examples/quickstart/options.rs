//! The command line.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg;

pub(crate) const HELP: &str = "\
Decodes speculatively and shows what tracing-spec-decode makes of it.

A target language model and a cheaper draft model, n-grams of different order, are made from a text; a batch of
sequences is then decoded by speculative sampling.

Usage: quickstart [OPTIONS]

  --steps N            decode steps; of each k, in a sweep                     [50000, in a sweep 400]
  --num-spec-tokens K  draft tokens per sequence and step, 0 to 16; 0: none    [4]
  --batch B            sequences decoded together, 1 to 1024                   [8]
  --seed S             the same seed decodes the same text                     [0]
  --text FILE          what the models are made from                           [this example's source]
  --sweep K,K,...      a step of each k in turn, a quarter of them plain, and which k is the best
  --draft-pass MICROS  what a pass of the draft model takes besides            [0, in a sweep 500]
  --target-pass MICROS what a pass of the target model takes besides           [0, in a sweep 5000]
  --interval SECONDS   the shortest time between two windows of the gauges     [0.5]
  --serve ADDR         answer Prometheus scrapes at http://ADDR/metrics
  --json               print one JSON object in place of the tables
  --help               print this

OTEL_EXPORTER_OTLP_ENDPOINT=URL exports the metrics there as well (OTEL_EXPORTER_OTLP_PROTOCOL: http/protobuf, grpc).
";

/// Positions that the layer counts by default.
pub(crate) const MAX_SPEC_TOKENS: u64 = 16;

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Command {
    Help,
    Decode(Options),
}

#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// A step of each k in turn; empty: one run.
    pub(crate) sweep: Vec<usize>,
    pub(crate) steps: u64,
    pub(crate) num_spec_tokens: usize,
    pub(crate) batch: usize,
    pub(crate) seed: u64,
    pub(crate) draft_pass: Duration,
    pub(crate) target_pass: Duration,
    pub(crate) text: Option<PathBuf>,
    pub(crate) interval: Duration,
    pub(crate) serve: Option<SocketAddr>,
    pub(crate) json: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sweep: Vec::new(),
            steps: 50_000,
            num_spec_tokens: 4,
            batch: 8,
            seed: 0,
            draft_pass: Duration::ZERO,
            target_pass: Duration::ZERO,
            text: None,
            interval: Duration::from_millis(500),
            serve: None,
            json: false,
        }
    }
}

/// Reads the arguments behind the program's name; what is wrong with them is one line.
pub(crate) fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut options = Options::default();
    let mut given = Vec::new();
    while let Some(argument) = parser.next().map_err(one_line)? {
        let name = match argument {
            Arg::Short('h') => "help".to_owned(),
            Arg::Long(name) => name.to_owned(),
            other => return Err(one_line(other.unexpected())),
        };
        match name.as_str() {
            "help" => return Ok(Command::Help),
            "steps" => options.steps = number(&mut parser, &name, 1..=1_000_000_000)?,
            "num-spec-tokens" => options.num_spec_tokens = number(&mut parser, &name, 0..=MAX_SPEC_TOKENS)? as usize,
            "batch" => options.batch = number(&mut parser, &name, 1..=1024)? as usize,
            "seed" => options.seed = number(&mut parser, &name, 0..=u64::MAX)?,
            "sweep" => options.sweep = list(&text(&mut parser)?)?,
            "draft-pass" => options.draft_pass = micros(&mut parser, &name)?,
            "target-pass" => options.target_pass = micros(&mut parser, &name)?,
            "text" => options.text = Some(parser.value().map_err(one_line)?.into()),
            "interval" => options.interval = seconds(&text(&mut parser)?)?,
            "serve" => options.serve = Some(address(&text(&mut parser)?)?),
            "json" => options.json = true,
            _ => return Err(one_line(Arg::Long(&name).unexpected())),
        }
        if given.contains(&name) {
            return Err(format!("--{name} is given twice"));
        }
        given.push(name);
    }
    let is_given = |name: &str| given.iter().any(|given| given == name);
    if is_given("sweep") {
        if is_given("num-spec-tokens") {
            return Err("--sweep has the values of k: --num-spec-tokens can't be given as well".to_owned());
        }
        let defaults = Options::default_sweep();
        options.steps = if is_given("steps") { options.steps } else { defaults.steps };
        options.draft_pass = if is_given("draft-pass") { options.draft_pass } else { defaults.draft_pass };
        options.target_pass = if is_given("target-pass") { options.target_pass } else { defaults.target_pass };
    }
    Ok(Command::Decode(options))
}

impl Options {
    /// What is not given in a sweep: passes that take so long that a sleep is about right.
    fn default_sweep() -> Self {
        let (draft_pass, target_pass) = (Duration::from_micros(500), Duration::from_millis(5));
        Self { steps: 400, draft_pass, target_pass, ..Self::default() }
    }
}

/// The values of k, each once.
fn list(text: &str) -> Result<Vec<usize>, String> {
    let numbers: Option<Vec<usize>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    numbers
        .filter(|numbers| numbers.iter().all(|number| *number as u64 <= MAX_SPEC_TOKENS))
        .filter(|numbers| (1..numbers.len()).all(|index| !numbers[..index].contains(&numbers[index])))
        .ok_or_else(|| {
            format!("--sweep takes different whole numbers from 0 to {MAX_SPEC_TOKENS}, such as 0,1,2,4, not {text:?}")
        })
}

fn micros(parser: &mut lexopt::Parser, name: &str) -> Result<Duration, String> {
    number(parser, name, 0..=1_000_000).map(Duration::from_micros)
}

fn number(parser: &mut lexopt::Parser, name: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let text = text(parser)?;
    text.parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("--{name} takes a whole number from {} to {}, not {text:?}", range.start(), range.end()))
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|interval| !interval.is_zero() && *interval <= Duration::from_secs(3600))
        .ok_or_else(|| format!("--interval takes seconds, above 0 and up to 3600, not {text:?}"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| format!("--serve takes an address and a port, such as 127.0.0.1:9464, not {text:?}"))
}

fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    let value = parser.value().map_err(one_line)?;
    value.into_string().map_err(|value| format!("{value:?} is not UTF-8"))
}

/// An argument may hold a line break; the message must not.
fn one_line(error: lexopt::Error) -> String {
    error.to_string().replace(char::is_control, " ")
}
