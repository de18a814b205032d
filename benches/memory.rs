//! What the layer keeps: `cargo bench --bench memory`. Counted by the allocator, so it is the same on every run.

use std::time::Duration;

use tracing::info_span;
use tracing_spec_decode::{HostCounters, builder};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

/// Bytes that are kept once `make` is over, and what it has made.
fn kept<T>(make: impl FnOnce() -> T) -> (i64, T) {
    let mut made = None;
    let counted = allocation_counter::measure(|| made = Some(make()));
    (counted.bytes_current, made.expect("it has been made"))
}

fn main() {
    println!("| what | bytes |");
    println!("|---|---:|");
    for open_steps in [256, 1_024] {
        let (bytes, _layer) =
            kept(|| builder().with_max_open_steps(open_steps).build::<tracing_subscriber::Registry>());
        println!("| the layer, 64 engines at most, {open_steps} open steps | {bytes} |");
    }
    for positions in [1, 16] {
        let bounded = builder().with_max_positions(positions).with_interval(Duration::ZERO);
        let (layer, handle) = bounded.build().expect("within the bounds");
        let _default = tracing::subscriber::set_default(registry().with(layer));
        let step = |engine: &str| drop(info_span!("spec_decode_step", engine, num_drafts = 1, num_draft_tokens = 4));
        (0..30_000).for_each(|_| step("warm"));
        let (bytes, ()) = kept(|| step("an engine"));
        println!("| an engine, {positions} positions | {bytes} |");
        let counters = HostCounters::with_positions(positions);
        let (bytes, _attached) = kept(|| handle.attach("an engine", counters.source()).expect("it has none"));
        println!("| its source on the host, attached | {bytes} |");
        let (bytes, ()) = kept(|| (0..100_000).for_each(|_| step("an engine")));
        println!("| 100,000 steps more | {bytes} |");
    }
}
