//! One stack, one kind of step, many times: the program whose instructions `instructions.sh` counts.
//!
//! `step_cost STACK STEP COUNT` runs it; without arguments it prints what there is.

mod stacks;
mod steps;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let [stack, step, count] = arguments.as_slice() else {
        println!("stacks: {}", stacks::NAMES.join(" "));
        println!("steps: {}", steps::NAMES.join(" "));
        return ExitCode::SUCCESS;
    };
    let (Some(step), Ok(count)) = (steps::named(step), count.parse()) else {
        eprintln!("step_cost: no such step, or no such count");
        return ExitCode::FAILURE;
    };
    if stacks::run(stack, || step(count)) {
        ExitCode::SUCCESS
    } else {
        eprintln!("step_cost: no such stack");
        ExitCode::FAILURE
    }
}
