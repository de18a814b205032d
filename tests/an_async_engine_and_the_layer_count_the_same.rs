//! Engines of the shape that `docs/adopting.md` shows, several at once on a runtime of several threads: what the one
//! without instrumentation counts of itself is what the layer has counted of the same engine with it, to the token.
//!
//! A binary of its own: the subscriber is global, since a step goes from thread to thread.
#![allow(missing_docs, unreachable_pub)]

mod support;

#[path = "adopting/after.rs"]
mod after;
#[path = "adopting/before.rs"]
mod before;
#[path = "adopting/model.rs"]
mod model;
#[path = "../examples/quickstart/rng.rs"]
mod rng;
#[path = "adopting/with_counters.rs"]
mod with_counters;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use before::Stats;
use model::{Models, Sequence};
use opentelemetry_sdk::metrics::Temporality;
use support::{Exported, Points, Watchdog, totals_of};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tracing_spec_decode::{Attached, EngineTotals, Handle, HostCounters, builder};
use tracing_subscriber::layer::SubscriberExt;

const LIMIT: Duration = Duration::from_secs(120);
const FLUSH: Duration = Duration::from_secs(30);
const SEEDS: u64 = 8;

/// The layer and a reader, in a stack that is made once for the process. One test at a time collects.
fn global() -> &'static (Handle, Mutex<Exported>) {
    static GLOBAL: OnceLock<(Handle, Mutex<Exported>)> = OnceLock::new();
    GLOBAL.get_or_init(|| {
        let exported = Exported::new(&[Temporality::Cumulative]);
        let (layer, handle) = builder().with_meter_provider(&exported.provider).build().unwrap();
        let log = tracing_subscriber::fmt::layer().with_writer(std::io::sink);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer).with(log)).unwrap();
        (handle, Mutex::new(exported))
    })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap()
}

/// More than fit into a batch, so that newcomers join while others have drafts.
fn requests() -> Vec<Sequence> {
    (0..40).map(|index| Sequence::of_length(20 + 7 * (index % 10))).collect()
}

/// What the engine without instrumentation decodes and counts, seed by seed.
fn the_truth(runtime: &Runtime) -> Vec<(Vec<Sequence>, Stats)> {
    let engines: Vec<_> = (0..SEEDS)
        .map(|seed| runtime.spawn(before::Engine::new("plain", Models::of_seed(seed)).run(requests())))
        .collect();
    let runs: Vec<_> = engines.into_iter().map(|engine| runtime.block_on(engine).unwrap()).collect();
    for (sequences, stats) in &runs {
        assert!(sequences.iter().all(|sequence| sequence.tokens.len() == sequence.length));
        let steps_without_drafts = stats.steps - stats.steps_with_drafts;
        assert!(steps_without_drafts > 0 && stats.discarded > 0, "{stats:?}");
        assert!(stats.steps_with_drafts > stats.verifications, "some were cancelled or have failed: {stats:?}");
        assert!(stats.accepted > 0 && stats.emitted < stats.accepted + stats.drafts, "some end early: {stats:?}");
    }
    runs
}

fn wait_for_all<S>(runtime: &Runtime, engines: Vec<JoinHandle<(Vec<Sequence>, S)>>) -> Vec<Vec<Sequence>> {
    engines.into_iter().map(|engine| runtime.block_on(engine).unwrap().0).collect()
}

fn assert_totals(totals: &EngineTotals, stats: &Stats) {
    let ours = [
        totals.drafted_steps.steps,
        totals.plain_steps.steps,
        totals.drafts,
        totals.draft_tokens,
        totals.accepted_tokens,
        totals.emitted_tokens.unwrap(),
        totals.discarded_draft_tokens.unwrap(),
    ];
    assert_eq!(ours.map(|count| count as usize), counts(stats), "{}", totals.engine);
    assert_eq!(totals.drafted_steps.tokens, Some(stats.emitted as u64), "all sequences of such a step have drafts");
}

fn assert_exported(points: &Points, engine: &str, stats: &Stats) {
    let of =
        |name: &str, attribute: &str| points[&format!("spec_decode.{name}{{{attribute}spec_decode.engine={engine}}}")];
    let exported = [
        of("steps", "spec_decode.drafted=true,"),
        of("steps", "spec_decode.drafted=false,"),
        of("drafts", ""),
        of("draft_tokens", ""),
        of("accepted_tokens", ""),
        of("emitted_tokens", ""),
        of("discarded_draft_tokens", ""),
    ];
    assert_eq!(exported, counts(stats).map(|count| count as f64), "{engine}");
}

fn counts(stats: &Stats) -> [usize; 7] {
    [
        stats.steps_with_drafts,
        stats.steps - stats.steps_with_drafts,
        stats.drafts,
        stats.draft_tokens,
        stats.accepted,
        stats.emitted,
        stats.discarded,
    ]
}

#[test]
fn from_fields_alone() {
    let _watchdog = Watchdog::of(LIMIT);
    let ((handle, exported), runtime) = (global(), runtime());
    let names: Vec<_> = (0..SEEDS).map(|seed| format!("fields {seed}")).collect();
    let engines: Vec<_> = (0..SEEDS)
        .zip(&names)
        .map(|(seed, name)| runtime.spawn(after::Engine::new(name, Models::of_seed(seed)).run(requests())))
        .collect();
    let truth = the_truth(&runtime);
    let decoded = wait_for_all(&runtime, engines);
    handle.flush(FLUSH).unwrap();
    let points = exported.lock().unwrap().collect();
    for ((name, decoded), (sequences, stats)) in names.iter().zip(&decoded).zip(&truth) {
        assert_eq!(decoded, sequences, "what is decoded is the same");
        let totals = totals_of(handle, name);
        assert_totals(&totals, stats);
        assert_exported(&points, name, stats);
        // Each that was cancelled or has failed; what it emitted is missed as well, once a step has said what it did.
        let [("incomplete", incomplete), ("emitted_unknown", emitted_unknown)] = totals.anomalies[..] else {
            panic!("{:?}", totals.anomalies)
        };
        assert_eq!(incomplete as usize, stats.steps_with_drafts - stats.verifications);
        assert!(emitted_unknown <= incomplete);
    }
}

#[test]
fn from_counters_on_the_host() {
    let _watchdog = Watchdog::of(LIMIT);
    let ((handle, exported), runtime) = (global(), runtime());
    let names: Vec<_> = (0..SEEDS).map(|seed| format!("counters {seed}")).collect();
    let (attached, engines): (Vec<Attached>, Vec<_>) = (0..SEEDS)
        .zip(&names)
        .map(|(seed, name)| {
            let counters = HostCounters::new();
            let attached = handle.attach(name, counters.source()).unwrap();
            let engine = with_counters::Engine::new(name, Models::of_seed(seed), counters);
            (attached, runtime.spawn(engine.run(requests())))
        })
        .unzip();
    let truth = the_truth(&runtime);
    let decoded = wait_for_all(&runtime, engines);
    handle.flush(FLUSH).unwrap();
    let points = exported.lock().unwrap().collect();
    for ((name, decoded), (sequences, stats)) in names.iter().zip(&decoded).zip(&truth) {
        assert_eq!(decoded, sequences, "what is decoded is the same");
        let totals = totals_of(handle, name);
        assert_totals(&totals, stats);
        assert_exported(&points, name, stats);
        assert_eq!(totals.anomalies, [], "{name}");
        let [accepted, drafted] = [totals.accepted_per_position, totals.draft_per_position].map(Option::unwrap);
        assert_eq!(accepted.iter().sum::<u64>() as usize, stats.accepted);
        assert_eq!(drafted.iter().sum::<u64>() as usize, stats.draft_tokens);
        assert_eq!(drafted[0] as usize, stats.drafts, "every draft has a first token");
    }
    drop(attached);
}

#[test]
fn a_task_that_is_aborted_in_its_step_leaves_an_incomplete_one_and_none_open() {
    let _watchdog = Watchdog::of(LIMIT);
    let ((handle, _), runtime) = (global(), runtime());
    let begun = Arc::new(Notify::new());
    let engine = after::Engine::new("aborted", Models::that_hang(Arc::clone(&begun)));
    let task = runtime.spawn(engine.run(requests()));
    runtime.block_on(begun.notified());
    assert_eq!(handle.status("aborted").open_steps, 1);
    task.abort();
    assert!(runtime.block_on(task).unwrap_err().is_cancelled());
    assert_eq!(handle.status("aborted").open_steps, 0);
    let totals = totals_of(handle, "aborted");
    assert_eq!((totals.drafted_steps.steps, totals.drafts, totals.draft_tokens), (1, 0, 0));
    assert_eq!(totals.anomalies, [("incomplete", 1)]);
}
