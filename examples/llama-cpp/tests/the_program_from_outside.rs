//! What a user sees of the program: counts that agree, spans and metrics at an OTLP endpoint, one line for bad input.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point::Value as Number};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::Value;
use support::{REPEATS, model_file};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec-decode-llama"));
    command.env_remove("OTEL_EXPORTER_OTLP_ENDPOINT").arg("--threads=1").arg("--model").arg(model_file());
    command.args(arguments);
    command
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn its_json_has_the_same_counts_from_the_layer_and_from_the_loop() {
    let arguments = ["--prompt", REPEATS, "--prompt", "one two three one two", "--max-tokens=32", "--json"];
    let result = json(&program(&arguments).output().expect("run"));
    let (metrics, engine) = (&result["metrics"], &result["engine"]);
    for name in ["steps", "drafts", "draft_tokens", "accepted_tokens", "emitted_tokens", "accepted_per_position"] {
        assert_eq!(metrics[name], engine[name], "{name}");
        assert!(metrics[name].as_u64() != Some(0), "{name} is 0");
    }
    let texts = engine["texts"].as_array().expect("texts");
    let tokens: usize = texts.iter().filter_map(|text| text["tokens"].as_array()).map(Vec::len).sum();
    assert_eq!((engine["tokens"].as_u64(), texts.len()), (Some(tokens as u64), 2));
    assert_eq!(result["baseline"]["steps"], 32);
}

#[test]
fn it_streams_the_text_and_ends_with_the_table() {
    let arguments = ["--prompt", REPEATS, "--max-tokens=24"];
    let text = json(&program(&arguments).arg("--json").output().expect("run"))["engine"]["texts"][0]["text"].clone();
    let output = program(&arguments).output().expect("run");
    let shown = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(shown.starts_with(text.as_str().expect("a text")), "{shown}");
    for row in ["with speculation", "without", "ratio", "draft_acceptance_rate", "   0  █"] {
        assert!(shown.contains(row), "{row} is missing in {shown}");
    }
}

/// What an OTLP endpoint was sent.
#[derive(Debug, Default)]
struct Received {
    spans: Vec<Span>,
    counters: BTreeMap<(String, String), i64>,
}

fn endpoint() -> (String, Arc<Mutex<Received>>) {
    let server = tiny_http::Server::http("127.0.0.1:0").expect("a server");
    let address = server.server_addr().to_ip().expect("an address");
    let received = Arc::new(Mutex::new(Received::default()));
    let into = Arc::clone(&received);
    std::thread::spawn(move || {
        for mut request in server.incoming_requests() {
            let mut body = Vec::new();
            request.as_reader().read_to_end(&mut body).expect("a body");
            into.lock().expect("a lock").take(request.url(), &body);
            let _ = request.respond(tiny_http::Response::empty(200));
        }
    });
    (format!("http://{address}"), received)
}

impl Received {
    fn take(&mut self, url: &str, body: &[u8]) {
        if url == "/v1/traces" {
            let resources = ExportTraceServiceRequest::decode(body).expect("spans").resource_spans;
            let scopes = resources.into_iter().flat_map(|resource| resource.scope_spans);
            self.spans.extend(scopes.flat_map(|scope| scope.spans));
            return;
        }
        assert_eq!(url, "/v1/metrics");
        let resources = ExportMetricsServiceRequest::decode(body).expect("metrics").resource_metrics;
        let scopes = resources.into_iter().flat_map(|resource| resource.scope_metrics);
        for metric in scopes.flat_map(|scope| scope.metrics) {
            let Some(Data::Sum(sum)) = metric.data else { continue };
            for point in sum.data_points {
                let Some(Number::AsInt(count)) = point.value else { continue };
                let value = |key: &str| point.attributes.iter().find(|pair| pair.key == key).map(|pair| &pair.value);
                let series = format!("{:?} {:?}", value("spec_decode.engine"), value("spec_decode.drafted"));
                self.counters.insert((metric.name.clone(), series), count);
            }
        }
    }

    /// With drafts and without, where a counter tells them apart.
    fn counter(&self, name: &str, engine: &str) -> Option<i64> {
        let points = self.counters.iter();
        let points = points.filter(|((of, by), _)| of == name && by.contains(&format!("\"{engine}\"")));
        points.map(|(_, count)| *count).reduce(|one, other| one + other)
    }

    /// The name of a span's parent.
    fn parent(&self, span: &Span) -> Option<&str> {
        self.spans.iter().find(|other| other.span_id == span.parent_span_id).map(|parent| parent.name.as_str())
    }
}

#[test]
fn an_otlp_endpoint_gets_the_counts_and_the_spans() {
    let (endpoint, received) = endpoint();
    let arguments = ["--prompt", REPEATS, "--max-tokens=16", "--json"];
    let output = program(&arguments).env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).output().expect("run");
    let result = json(&output);
    let received = received.lock().expect("a lock");
    for name in ["drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"] {
        let exported = received.counter(&format!("spec_decode.{name}"), "0");
        assert_eq!(exported, result["engine"][name].as_i64(), "{name}");
    }
    assert_eq!(received.counter("spec_decode.steps", "baseline"), Some(16));

    let mut spans: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
    for span in &received.spans {
        *spans.entry((&span.name, received.parent(span))).or_default() += 1;
    }
    let steps = result["engine"]["steps"].as_u64().expect("a count") + 16;
    let expected = [
        (("request", None), 2),
        (("prefill", Some("request")), 2),
        (("spec_decode_step", Some("request")), steps),
        (("spec_decode_draft", Some("spec_decode_step")), steps),
        (("spec_decode_verify", Some("spec_decode_step")), steps),
    ];
    assert_eq!(spans, expected.into());
}

#[test]
fn an_endpoint_that_nobody_serves_is_told_of_after_the_table() {
    let unserved = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port");
    let mut command = program(&["--prompt", "one", "--max-tokens=2", "--json"]);
    let output = command.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{unserved}")).output().expect("run");
    assert!(!output.status.success() && !output.stdout.is_empty());
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(message.contains("did not arrive") && message.lines().count() == 1, "{message}");
}

#[track_caller]
fn refused(command: &mut Command, expected: &str) {
    let output = command.output().expect("run");
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty());
    assert!(message.starts_with("spec-decode-llama: ") && message.contains(expected), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

fn without_model(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spec-decode-llama"));
    command.args(arguments);
    command
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, bytes).expect("a file");
    path
}

#[test]
fn a_model_that_cannot_be_is_refused_in_one_line() {
    let with = |model: &str| without_model(&["--prompt=x", "--model", model]);
    refused(&mut with("absent\nmodel.gguf"), "No such file");
    refused(&mut with("/"), "cannot read");
    let text = file("text.gguf", b"not a model");
    refused(&mut with(text.to_str().expect("UTF-8")), "is not a GGUF file");
    let mut start = vec![0; 1 << 20];
    fs::File::open(model_file()).and_then(|mut file| file.read_exact(&mut start)).expect("the model");
    let cut = file("cut.gguf", &start);
    refused(&mut with(cut.to_str().expect("UTF-8")), "cut short");
    refused(&mut program(&["--prompt=x", "--draft-model", cut.to_str().expect("UTF-8")]), "cut short");
    refused(&mut without_model(&["--prompt=x"]), "--model FILE is missing");
}

#[test]
fn a_prompt_that_cannot_be_is_refused_in_one_line() {
    refused(&mut program(&[]), "--prompt-file FILE is missing");
    refused(&mut program(&["--prompt", REPEATS, "--context=64"]), "a context of 64 has no room");
    refused(&mut program(&["--prompt-file", "absent"]), "cannot read \"absent\"");
    let binary = file("binary.txt", &[0xff; 9]);
    refused(&mut program(&["--prompt-file", binary.to_str().expect("UTF-8")]), "is not UTF-8");
}

#[test]
fn numbers_that_cannot_be_are_refused_in_one_line() {
    let with = |arguments: &[&str]| program(&[&["--prompt=x"], arguments].concat());
    refused(&mut with(&["--num-spec-tokens=512"]), "a pass of 513, over the 512 of a batch");
    refused(&mut with(&["--num-spec-tokens=7", "--parallel=4", "--batch=31"]), "a pass of 32, over the 31");
    refused(&mut with(&["--num-spec-tokens=0"]), "--num-spec-tokens takes a number from 1");
    for temperature in ["-1", "nan", "inf", "hot"] {
        refused(&mut with(&["--temperature", temperature]), "--temperature takes a number");
    }
    refused(&mut with(&["--max-tokens=many"]), "--max-tokens takes a number");
    refused(&mut with(&["--baseline", "--prompt-lookup=3"]), "exclude each other");
    refused(&mut with(&["--seed=1", "--seed=2"]), "--seed is given twice");
    refused(&mut with(&["--two\nlines"]), "--two lines");
}
