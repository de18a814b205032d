//! Eight threads run 64 engines, whose sources come, go, fail and die, while others read and flush: the totals are what
//! was done, to the token, no span stays open, and memory is flat. `tools/soak.sh` runs it for 10^8 steps.
#![allow(missing_docs)]

mod soak;
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::json;
use soak::engine::{Changes, Done, Engine, published};
use soak::rng::Rng;
use support::{Exported, is_counter};
use tracing::span::{Attributes, Id};
use tracing::{Dispatch, Subscriber};
use tracing_spec_decode::{Handle, builder};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

const THREADS: usize = 8;
/// Each thread's own, and those that all of them run.
const OWN: usize = 6;
const SHARED: usize = 16;
const ENGINES: usize = THREADS * OWN + SHARED;

/// Counts the spans that are open, whoever keeps them.
#[derive(Clone, Default)]
struct Open(Arc<AtomicI64>);

impl<S: Subscriber> Layer<S> for Open {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One thread's steps: its own engines one after another, and now and then one that all threads run.
fn run(thread: usize, steps: u64, handle: &Handle, progress: &AtomicU64) -> (Vec<Engine>, Vec<Engine>) {
    let name = |engine: usize| format!("engine-{engine}");
    let own = (0..OWN).map(|index| Engine::new(name(thread * OWN + index), index == 0, false));
    let shared = (0..SHARED).map(|index| Engine::new(name(THREADS * OWN + index), false, true));
    let (mut own, mut shared): (Vec<_>, Vec<_>) = (own.collect(), shared.collect());
    let mut rng = Rng::new(7, thread as u64);
    // Some changes per engine in a short run, and not too many flushes in a long one.
    let steps_between_changes = (steps as usize / 64).clamp(200, 100_000);
    for step in 0..steps {
        let engine = match rng.below(4) {
            0 => &mut shared[rng.below(SHARED)],
            _ => &mut own[rng.below(OWN)],
        };
        engine.between_steps(handle, &mut rng, steps_between_changes);
        engine.step(&mut rng);
        if step % 1_024 == 0 {
            progress.fetch_add(1_024, Ordering::Relaxed);
        }
    }
    own.iter_mut().for_each(|engine| engine.end(handle));
    (own, shared)
}

/// Resident memory in KiB, where the system says it as Linux does.
fn resident() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?.parse().ok()
}

/// Reads until told to stop; how often it read, and the memory once a tenth of the steps was done.
fn read(exported: &Exported, stop: &mpsc::Receiver<()>, warm: impl Fn() -> bool) -> (u64, Option<i64>) {
    let (mut last, mut reads, mut memory) = (BTreeMap::<String, f64>::new(), 0, None);
    while stop.recv_timeout(Duration::from_millis(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
        let points = exported.collect();
        for (name, before) in last.iter().filter(|(name, _)| is_counter(name)) {
            assert!(points.get(name).is_some_and(|now| now >= before), "{name} fell from {before}");
        }
        let is_ratio = |name: &str| name.contains("rate{") || name.contains("efficiency{");
        assert!(points.iter().all(|(name, value)| !is_ratio(name) || (0.0..=1.0).contains(value)));
        last = points;
        reads += 1;
        if memory.is_none() && warm() {
            memory = resident();
        }
    }
    (reads, memory)
}

#[test]
fn totals_are_exact_no_span_stays_and_memory_is_flat() {
    let steps: u64 = std::env::var("SOAK_STEPS").map_or(240_000, |steps| steps.parse().expect("a number"));
    let longest = Duration::from_secs(60 + steps / 10_000);
    std::thread::spawn(move || {
        std::thread::sleep(longest);
        eprintln!("the soak hangs: given up");
        std::process::abort();
    });
    let exported = Exported::cumulative();
    let (layer, handle) = builder()
        .with_interval(Duration::from_micros(200))
        .with_max_open_steps(1_024)
        .with_meter_provider(&exported.provider)
        .build()
        .unwrap();
    let open = Open::default();
    let dispatch = Dispatch::new(tracing_subscriber::registry().with(layer).with(open.clone()));
    let (progress, done, flushes) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let started = Instant::now();
    let (stop, stopped) = mpsc::channel();
    let (threads, (reads, memory)) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (dispatch, handle, progress) = (&dispatch, &handle, &progress);
                scope.spawn(move || {
                    tracing::dispatcher::with_default(dispatch, || {
                        run(thread, steps / THREADS as u64, handle, progress)
                    })
                })
            })
            .collect();
        let (exported, warm) = (&exported, || progress.load(Ordering::Relaxed) > steps / 10);
        let reader = scope.spawn(move || read(exported, &stopped, warm));
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = handle.flush(Duration::from_millis(5));
                flushes.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let threads: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        stop.send(()).unwrap();
        let threads: Vec<_> = threads.into_iter().map(|thread| thread.unwrap()).collect();
        (threads, reader.join().unwrap())
    });
    let seconds = started.elapsed().as_secs_f64();
    handle.flush(Duration::from_secs(30)).expect("everything is well and nothing is open");

    let mut changes = Changes::default();
    let mut by_engine: BTreeMap<&str, Done> = BTreeMap::new();
    for engine in threads.iter().flat_map(|(own, shared)| own.iter().chain(shared)) {
        by_engine.entry(&engine.name).or_default().add(&engine.done);
        changes.attached += engine.changes.attached;
        changes.detached_flushed += engine.changes.detached_flushed;
        changes.detached_at_once += engine.changes.detached_at_once;
        changes.died += engine.changes.died;
    }
    assert_eq!(by_engine.len(), ENGINES);
    let points = exported.collect();
    let mut all = Done::default();
    for (engine, done) in &by_engine {
        assert_eq!(published(&handle, engine), *done, "{engine}");
        let exported = points[&format!("spec_decode.accepted_tokens{{spec_decode.engine={engine}}}")];
        assert_eq!(exported, done.accepted as f64, "{engine}: what is exported");
        assert_eq!(handle.status(engine).open_steps, 0, "{engine}: steps open");
        all.add(done);
    }
    assert_eq!(all.plain + all.drafted, steps / THREADS as u64 * THREADS as u64);
    assert_eq!(open.0.load(Ordering::Relaxed), 0, "spans left open");
    for wrong in ["source_disagrees", "open_steps_over_bound", "counter_restarted", "accepted_exceeds_draft"] {
        let points: Vec<_> = points.iter().filter(|(name, _)| name.contains(wrong)).collect();
        assert!(points.iter().all(|point| *point.1 == 0.0), "{points:?}");
    }
    assert!(changes.detached_flushed > 0 && changes.detached_at_once > 0, "{changes:?}");
    let (before, after) = (memory, resident());
    if let (Some(before), Some(after)) = (before, after) {
        // The threads' allocators keep a little of what readers and flushes used at once.
        assert!(after - before < 8 * 1024, "{before} KiB grew to {after} KiB");
    }
    let collections = |outcome: &str| -> f64 {
        points.iter().filter(|(name, _)| name.contains(&format!("outcome={outcome}"))).map(|point| point.1).sum()
    };
    let report = json!({
        "steps": all.plain + all.drafted,
        "seconds": seconds.round(),
        "engines": ENGINES,
        "threads": THREADS,
        "draft_tokens": all.draft_tokens,
        "accepted_tokens": all.accepted,
        "attached": changes.attached,
        "detached_after_a_flush": changes.detached_flushed,
        "detached_at_once": changes.detached_at_once,
        "died": changes.died,
        "collections": json!({
            "resolved": collections("resolved"), "skipped": collections("skipped"),
            "failed": collections("failed"), "lost": collections("lost"),
        }),
        "reads": reads,
        "flushes": flushes.load(Ordering::Relaxed),
        "open_spans_at_the_end": 0,
        "resident_kib_after_a_tenth": before,
        "resident_kib_at_the_end": after,
    });
    println!("soak: {report}");
}
