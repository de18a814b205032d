//! Checks the CUDA source against a real GPU and measures what it costs, in under two minutes, as JSON on stdout:
//! `cargo run --release --features cuda --example gpu_check`. The exit code is 1 where a check failed.
//!
//! `--simulate` runs the same on the simulated driver, with fewer steps. That shows that this program works and that
//! the source makes its calls in the right order. It says nothing about NVIDIA's driver: the captures replay rules that
//! the simulator was given, and none of the times means anything.
#![allow(unsafe_code)]

mod amounts;
mod captures;
mod costs;
mod engine;
mod exact;
mod gpu_time;
mod saturated;
#[path = "../simulator/mod.rs"]
mod simulator;
mod timing;
mod whole;

use std::process::ExitCode;
use std::time::Instant;

use amounts::{Amounts, Outcome};
use serde_json::{Map, Value, json};
use tracing_spec_decode::cuda::driver_version;

type Check = fn(Amounts) -> Outcome;

const ON_A_GPU: Amounts =
    Amounts { steps: 1_000_000, samples: 20_000, calls: 10_000, captures: 2_000, transfer_bytes: 256 << 20 };
const SIMULATED: Amounts =
    Amounts { steps: 20_000, samples: 1_000, calls: 300, captures: 100, transfer_bytes: 1 << 20 };

fn main() -> ExitCode {
    if let Err(message) = simulator::open_if_asked() {
        eprintln!("{message}");
        return ExitCode::FAILURE;
    }
    let version = match driver_version() {
        Ok(version) => version,
        Err(error) => {
            eprintln!("{error} (`-- --simulate` checks this program itself on a simulated driver)");
            return ExitCode::FAILURE;
        }
    };
    let simulated = simulator::is_asked();
    let amounts = if simulated { SIMULATED } else { ON_A_GPU };
    let mut report = Map::new();
    report.insert("simulated".into(), simulated.into());
    report.insert("driver_version".into(), version.into());
    report.insert("device".into(), engine::device_name().unwrap_or_default().into());

    let checks: [(&str, Check); 7] = [
        ("exact", exact::check),
        ("whole_while_running_ahead", whole::check),
        ("captures_elsewhere", captures::elsewhere),
        ("capture_of_the_engines_stream", captures::own),
        ("copy_engine_saturated", saturated::check),
        ("gpu_time", gpu_time::check),
        ("costs", costs::measure),
    ];
    let mut all_well = true;
    for (name, check) in checks {
        let start = Instant::now();
        let outcome = check(amounts);
        all_well &= outcome.is_ok();
        let mut value = outcome.unwrap_or_else(|error| json!({ "failed": error.to_string() }));
        value["seconds"] = start.elapsed().as_secs_f64().into();
        report.insert(name.into(), value);
    }
    report.insert("all_well".into(), all_well.into());
    println!("{:#}", Value::Object(report));
    if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
