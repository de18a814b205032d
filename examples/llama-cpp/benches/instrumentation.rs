//! What the layer costs a real engine: the same run with it and without, in turns, and what one step costs by itself.
//! Beside it, what speculation gains that engine.
//!
//! The processor's time of this thread is taken, on which everything happens: other programs matter less to it.
//!
//! `LLAMA_MODEL=$(./fetch-model.sh) cargo bench --bench instrumentation -- [RUNS]`

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cpu_time::ThreadTime;
use spec_decode_llama::engine::{Drafting, Engine, Settings};
use spec_decode_llama::lookahead::Lookahead;
use spec_decode_llama::model::{Model, Token};
use spec_decode_llama::runner::Capacity;
use spec_decode_llama::sampling::Method;
use tracing::dispatcher::{Dispatch, with_default};
use tracing_spec_decode::{HostCounters, step_span};
use tracing_subscriber::layer::SubscriberExt;

const PROMPT: &str = include_str!("../prompt-that-repeats.txt");
const STEPS: u32 = 100_000;

fn main() -> Result<()> {
    let runs = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(10);
    let model = Model::load(std::env::var_os("LLAMA_MODEL").context("LLAMA_MODEL is not set")?.as_ref())?;
    let prompt = [model.tokenize(PROMPT)];

    let mut ratios = Vec::new();
    let mut step = Duration::MAX;
    for run in 0..runs {
        let Times { with, without, steps } = in_turns(&model, &prompt, run % 2 == 0)?;
        ratios.push(with.as_secs_f64() / without.as_secs_f64());
        step = step.min(without / steps);
    }
    ratios.sort_by(f64::total_cmp);
    let [low, median, high] = [1, 2, 3].map(|quarter| ratios[ratios.len() * quarter / 4]);
    println!("with the layer / without, {runs} runs: median {median:.4}, quartiles {low:.4} and {high:.4}");

    let alone = instrumentation_alone()?;
    let share = 100.0 * alone.as_secs_f64() / step.as_secs_f64();
    println!("the instrumentation alone: {alone:?}, {share:.4} % of a step of {step:.1?}");

    for k in [1, 3, 4, 7, 15] {
        let (mut speculative, mut plain) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            speculative = speculative.min(time_of_a_token(&model, &prompt, Drafting::PromptLookup(3), k)?);
            plain = plain.min(time_of_a_token(&model, &prompt, Drafting::Off, 0)?);
        }
        let gain = plain.as_secs_f64() / speculative.as_secs_f64();
        println!("k = {k}: {speculative:.2?} a token, {plain:.2?} without speculation, {gain:.2} times as fast");
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Times {
    with: Duration,
    without: Duration,
    steps: u32,
}

/// Two engines decode the same, step by step in turns: one with a subscriber as an application would have it, one with
/// none.
fn in_turns(model: &Model, prompt: &[Vec<Token>], with_first: bool) -> Result<Times> {
    let (layer, handle) = tracing_spec_decode::builder().build()?;
    let layered = Dispatch::new(tracing_subscriber::registry().with(layer));
    let mut with = engine(model, prompt, Drafting::PromptLookup(3), 4)?;
    let mut without = engine(model, prompt, Drafting::PromptLookup(3), 4)?;
    let _attached = handle.attach("0", with.counters.source())?;
    with.prefill()?;
    without.prefill()?;
    let mut times = Times::default();
    while !with.is_done() {
        if with_first {
            times.with += with_default(&layered, || timed(&mut with))?;
        }
        times.without += timed(&mut without)?;
        if !with_first {
            times.with += with_default(&layered, || timed(&mut with))?;
        }
        times.steps += 1;
    }
    ensure!(handle.status("0").steps == u64::from(times.steps), "the layer has not seen the steps");
    Ok(times)
}

fn time_of_a_token<'m>(model: &'m Model, prompt: &[Vec<Token>], drafting: Drafting<'m>, k: usize) -> Result<Duration> {
    let mut engine = engine(model, prompt, drafting, k)?;
    engine.prefill()?;
    let mut time = Duration::ZERO;
    while !engine.is_done() {
        time += timed(&mut engine)?;
    }
    Ok(time / u32::try_from(engine.counts().tokens)?)
}

fn engine<'m>(model: &'m Model, prompt: &[Vec<Token>], drafting: Drafting<'m>, k: usize) -> Result<Engine<'m>> {
    let settings = Settings {
        name: "0",
        drafting,
        lookahead: Lookahead::fixed(k),
        method: Method::Greedy,
        max_tokens: 96,
        seed: 0,
        capacity: Capacity { sequences: 1, context: 512, batch: 128, micro_batch: 128, threads: 1 },
    };
    Engine::new(model, prompt, settings)
}

fn timed(engine: &mut Engine<'_>) -> Result<Duration> {
    let start = ThreadTime::now();
    engine.step()?;
    Ok(start.elapsed())
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
