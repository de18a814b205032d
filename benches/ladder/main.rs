//! What a step costs in time, beside what else it could cost; what threads and engines change; what a reader's collection
//! costs. Everything that is compared was measured in turns within this run: `cargo bench --bench ladder`.
//!
//! With `--features cuda` the CUDA source is among the rows, and `-- --simulate` gives it the simulated driver. Times
//! shake with the machine's load, ratios less; `benches/instructions.sh` counts what does not shake.

mod callbacks;
#[allow(dead_code)]
#[path = "../step_cost/stacks.rs"]
mod stacks;
mod stairs;
#[allow(dead_code)]
#[path = "../step_cost/steps.rs"]
mod steps;
mod threads;
mod turns;

fn main() {
    stairs::print();
    threads::print();
    callbacks::print();
}
