//! What the layer costs a real engine: the same run with it and without, in turns, and what one step costs by itself.
//!
//! `LLAMA_MODEL=$(./fetch-model.sh) cargo bench --bench instrumentation -- [PAIRS]`

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use spec_decode_llama::engine::{Drafting, Engine, Settings};
use spec_decode_llama::lookahead::Lookahead;
use spec_decode_llama::model::{Model, Token};
use spec_decode_llama::runner::Capacity;
use spec_decode_llama::sampling::Method;
use tracing_spec_decode::{HostCounters, step_span};
use tracing_subscriber::layer::SubscriberExt;

const PROMPT: &str = include_str!("../prompt-that-repeats.txt");
const STEPS: u32 = 100_000;

fn main() -> Result<()> {
    let pairs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(20);
    let model = Model::load(std::env::var_os("LLAMA_MODEL").context("LLAMA_MODEL is not set")?.as_ref())?;
    let prompt = [model.tokenize(PROMPT)];

    // The first run warms the file's pages and the allocator up.
    with_layer(&model, &prompt)?;
    let mut ratios = Vec::new();
    let mut time_of_a_step = Duration::MAX;
    for pair in 0..pairs {
        // Who goes first takes turns as well.
        let (with, without) = if pair % 2 == 0 {
            let with = with_layer(&model, &prompt)?;
            (with, decode(&model, &prompt, |_| Ok(()))?)
        } else {
            let without = decode(&model, &prompt, |_| Ok(()))?;
            (with_layer(&model, &prompt)?, without)
        };
        ratios.push(with.as_secs_f64() / without.as_secs_f64());
        time_of_a_step = time_of_a_step.min(without);
    }
    ratios.sort_by(f64::total_cmp);
    let [low, median, high] = [1, 2, 3].map(|quarter| ratios[ratios.len() * quarter / 4]);
    println!("time of a step with the layer / without, {pairs} pairs: median {median:.4}, quartiles {low:.4} {high:.4}");

    let alone = instrumentation_alone()?;
    let share = 100.0 * alone.as_secs_f64() / time_of_a_step.as_secs_f64();
    println!("instrumentation alone: {alone:?} of the {time_of_a_step:?} that a step takes, {share:.4} %");
    Ok(())
}

/// With the subscriber that an application would have, for this thread.
fn with_layer(model: &Model, prompt: &[Vec<Token>]) -> Result<Duration> {
    let (layer, handle) = tracing_spec_decode::builder().build()?;
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let mut attached = None;
    decode(model, prompt, |engine| {
        attached = Some(handle.attach("0", engine.counters.source())?);
        Ok(())
    })
}

/// The mean time of a step.
fn decode(model: &Model, prompt: &[Vec<Token>], set_up: impl FnOnce(&Engine<'_>) -> Result<()>) -> Result<Duration> {
    let settings = Settings {
        name: "0",
        drafting: Drafting::PromptLookup(3),
        lookahead: Lookahead::fixed(4),
        method: Method::Greedy,
        max_tokens: 96,
        seed: 0,
        capacity: Capacity { sequences: 1, context: 512, batch: 128, micro_batch: 128, threads: 1 },
    };
    let mut engine = Engine::new(model, prompt, settings)?;
    set_up(&engine)?;
    engine.prefill()?;
    let start = Instant::now();
    while !engine.is_done() {
        engine.step()?;
    }
    Ok(start.elapsed() / u32::try_from(engine.counts().steps)?)
}

/// The loop's span, its fields and its counters around nothing.
fn instrumentation_alone() -> Result<Duration> {
    let (layer, handle) = tracing_spec_decode::builder().build()?;
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let mut counters = HostCounters::with_positions(4);
    let _attached = handle.attach("0", counters.source())?;
    let start = Instant::now();
    for _ in 0..STEPS {
        let span = step_span!(engine = "0", num_spec_tokens = 4_u64);
        let _inside = span.enter();
        span.record("num_drafts", 1_u64);
        span.record("num_draft_tokens", 4_u64);
        counters.record_draft(4, 3, 4);
        span.record("num_accepted_tokens", 3_u64);
        span.record("num_emitted_tokens", 4_u64);
        span.record("num_tokens", 4_u64);
    }
    Ok(start.elapsed() / STEPS)
}
