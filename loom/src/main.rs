//! The library's lock-free modules on loom's atomics, and the ways in which its threads use them.

#[path = "../../src/anomaly.rs"]
mod anomaly;
#[path = "../../src/baton.rs"]
mod baton;
#[path = "../../src/marks.rs"]
mod marks;
#[path = "../../src/open_steps.rs"]
mod open_steps;
#[path = "../../src/outcome.rs"]
mod outcome;
#[path = "../../src/phases.rs"]
mod phases;
#[path = "../../src/published.rs"]
mod published;
#[path = "../../src/quantity.rs"]
mod quantity;
#[path = "../../src/sequence.rs"]
mod sequence;
#[path = "../../src/slot.rs"]
mod slot;
#[path = "../../src/source.rs"]
mod source;
#[path = "../../src/step.rs"]
mod step;
#[path = "../../src/table.rs"]
mod table;
#[path = "../../src/ticks.rs"]
mod ticks;

/// Stands in for `src/sync.rs`.
mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

mod models;

fn main() {
    for (name, model) in models::ALL {
        println!("{name}");
        model();
    }
    println!("{} models hold", models::ALL.len());
}
