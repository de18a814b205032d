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

  --steps N            decode steps                                            [50000]
  --num-spec-tokens K  draft tokens per sequence and step, 0 to 16; 0: none    [4]
  --batch B            sequences decoded together, 1 to 1024                   [8]
  --seed S             the same seed decodes the same text                     [0]
  --text FILE          what the models are made from                           [this example's source]
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
    pub(crate) steps: u64,
    pub(crate) num_spec_tokens: usize,
    pub(crate) batch: usize,
    pub(crate) seed: u64,
    pub(crate) text: Option<PathBuf>,
    pub(crate) interval: Duration,
    pub(crate) serve: Option<SocketAddr>,
    pub(crate) json: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            steps: 50_000,
            num_spec_tokens: 4,
            batch: 8,
            seed: 0,
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
    Ok(Command::Decode(options))
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
