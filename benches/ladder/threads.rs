//! Threads that run steps at once, each taking the engines in turn, against the same under a layer that does nothing.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use tracing::dispatcher::with_default;
use tracing::{Dispatch, info_span};
use tracing_spec_decode::builder;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;

use crate::stacks::{Noop, Ours};
use crate::turns::{medians, nanoseconds};

const STEPS: u32 = 8_000;
const THREADS: [u32; 3] = [1, 2, 8];
const ENGINES: [usize; 3] = [1, 8, 64];

#[derive(Clone, Copy)]
struct Contender {
    ours: bool,
    threads: u32,
    engines: usize,
}

/// The time until all threads have run their share of the steps.
fn time(contender: &Contender) -> Duration {
    let dispatch = if contender.ours {
        let (layer, _) = builder().with_interval(Duration::from_secs(3600)).build().expect("the defaults are right");
        Dispatch::new(registry().with(layer))
    } else {
        Dispatch::new(registry().with(Noop.with_filter(Ours)))
    };
    let names: Vec<String> = (0..contender.engines).map(|engine| format!("engine-{engine}")).collect();
    let ready = Barrier::new(contender.threads as usize + 1);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..contender.threads as usize)
            .map(|thread| {
                let (dispatch, ready, names) = (&dispatch, &ready, &names);
                scope.spawn(move || {
                    with_default(dispatch, || {
                        let engines = names.iter().cycle().skip(thread);
                        ready.wait();
                        steps(engines.take((STEPS / contender.threads) as usize));
                    });
                })
            })
            .collect();
        ready.wait();
        let start = Instant::now();
        workers.into_iter().for_each(|worker| worker.join().expect("steps don't panic"));
        start.elapsed()
    })
}

fn steps<'a>(engines: impl Iterator<Item = &'a String>) {
    for engine in engines {
        let span = info_span!(
            "spec_decode_step",
            engine = engine.as_str(),
            num_drafts = 2_u64,
            num_draft_tokens = 8_u64,
            num_accepted_tokens = 5_u64
        );
        drop(span.enter());
    }
}

pub(crate) fn print() {
    let grid = THREADS.into_iter().flat_map(|threads| ENGINES.map(|engines| (threads, engines)));
    let contenders: Vec<Contender> =
        grid.flat_map(|(threads, engines)| [false, true].map(|ours| Contender { ours, threads, engines })).collect();
    let medians = medians(&contenders, |contender| Some(time(contender)));
    println!("\nthreads that run steps at once: ns from one step's end to the next one's, all threads together\n");
    println!("| threads | engines | a layer that does nothing | ours | ratio |");
    println!("|---:|---:|---:|---:|---:|");
    for (pair, times) in contenders.chunks(2).zip(medians.chunks(2)) {
        let [nothing, ours] = [0, 1].map(|which| times[which].map_or(f64::NAN, |time| nanoseconds(time, STEPS)));
        let Contender { threads, engines, .. } = pair[0];
        println!("| {threads} | {engines} | {nothing:.0} | {ours:.0} | {:.2} |", ours / nothing);
    }
}
