//! One thread, one step after another, under one stack after another.

use std::time::{Duration, Instant};

use crate::turns::{medians, nanoseconds};
use crate::{stacks, steps};

const STEPS: u32 = 4_000;

/// What is shown, the stack, the kind of step, and the stack that this one is an addition to.
const STAIRS: [(&str, &str, &str, &str); 22] = [
    ("no subscriber", "none", "whole", ""),
    ("registry", "registry", "whole", ""),
    ("registry, six fields", "registry", "full", ""),
    ("registry, another span", "registry", "other", ""),
    ("a filtered layer that does nothing", "noop", "whole", "registry"),
    ("a filtered layer that does nothing, six fields", "noop", "full", "registry"),
    ("ours, another span", "ours", "other", "noop"),
    ("ours, two fields", "ours", "two", "noop"),
    ("ours", "ours", "whole", "noop"),
    ("ours, six fields, two recorded late", "ours", "full", "noop"),
    ("ours, device source, not sampled", "ours_device", "whole", "noop"),
    ("ours, host source", "ours_host", "whole", "noop"),
    ("ours, device source, each step sampled", "ours_sampled", "whole", "noop"),
    ("ours, CUDA source, each step sampled", "ours_cuda", "whole", "noop"),
    ("a layer with a filter of its own, another span", "filtered", "other", "registry"),
    ("the same beside ours, another span", "filtered_ours", "other", "filtered"),
    ("the same beside ours", "filtered_ours", "whole", "filtered"),
    ("fmt to a sink, a line per step", "fmt", "whole", "registry"),
    ("OpenTelemetry trace layer", "otel_trace", "whole", "registry"),
    ("OpenTelemetry trace layer, six fields", "otel_trace", "full", "registry"),
    ("OpenTelemetry metrics layer, an event per step", "otel_metrics", "event", ""),
    ("three counters, added to by hand", "none", "by_hand", ""),
];

/// What the others are compared with.
const TRACE_LAYER: (&str, &str) = ("otel_trace", "whole");

/// The time that a batch of steps takes, without its stack's set-up; `None` for a stack that there isn't here.
fn time(stack: &str, kind: &str) -> Option<Duration> {
    let step = steps::named(kind)?;
    let mut time = None;
    let ran = stacks::run(stack, || {
        step((STEPS / 4).into());
        let start = Instant::now();
        step(STEPS.into());
        time = Some(start.elapsed());
    });
    time.filter(|_| ran)
}

pub(crate) fn print() {
    let mut contenders: Vec<(&str, &str)> = STAIRS.iter().map(|&(_, stack, kind, _)| (stack, kind)).collect();
    // What a row is an addition to need not be a row itself.
    contenders.extend(STAIRS.iter().filter(|stair| !stair.3.is_empty()).map(|&(_, _, kind, base)| (base, kind)));
    contenders.sort_unstable();
    contenders.dedup();
    let medians = medians(&contenders, |&(stack, kind)| time(stack, kind));
    let cost = |stack: &str, kind: &str| {
        let place = contenders.iter().position(|&contender| contender == (stack, kind))?;
        Some(nanoseconds(medians[place]?, STEPS))
    };
    let registry = cost("registry", "whole").expect("it has run");
    let trace = cost(TRACE_LAYER.0, TRACE_LAYER.1).expect("it has run");

    println!(
        "\na step: its time, what the layer adds to the stack without it, and how many times that the trace layer adds\n"
    );
    println!("| stack | ns | of a registry's | added ns | trace layer's / added |");
    println!("|---|---:|---:|---:|---:|");
    for (label, stack, kind, base) in STAIRS {
        let Some(own) = cost(stack, kind) else {
            println!("| {label} | skipped: no driver (`--features cuda`, `-- --simulate`) | | | |");
            continue;
        };
        print!("| {label} | {own:.0} | {:.2} | ", own / registry);
        match cost(base, kind).map(|base| own - base) {
            Some(added) if added >= 1.0 => println!("{added:.0} | {:.1} |", (trace - registry) / added),
            Some(_) => println!("0 | |"),
            None => println!("| |"),
        }
    }
}
