//! The device's own time of a step lies between that of events inside of the step and that of events around it.

use std::error::Error;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use serde_json::json;
use tracing::info_span;
use tracing_spec_decode::cuda::DeviceCounters;
use tracing_spec_decode::{SourceState, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

use crate::amounts::{Amounts, Outcome};
use crate::engine::{Batch, K, Random, expect, stream};

/// What the clocks behind two events may differ by: they tick every half microsecond.
const TOLERANCE_MS: f64 = 0.002;

pub(crate) fn check(amounts: Amounts) -> Outcome {
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder().with_clock(clock).build()?;
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let stream = stream()?;
    let counters = DeviceCounters::from_cudarc(&stream, K)?;
    let source = counters.source()?.with_gpu_time()?;
    let _attached = handle.attach("0", source)?;
    let batch = Batch::random(&stream, &mut Random::new(3))?;
    let mark = || stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
    let gpu = || handle.totals().engines.first().map(|engine| engine.gpu).unwrap_or_default();

    let steps = amounts.calls.min(1_000);
    let (mut inner_ms, mut ours_ms, mut outer_ms) = (0.0, 0.0, 0.0);
    for step in 0..steps {
        mock.increment(Duration::from_secs(6));
        let before = gpu();
        let around = mark()?;
        let inside = step_span!(num_spec_tokens = K as u64).in_scope(|| -> Result<_, Box<dyn Error>> {
            let begin = mark()?;
            info_span!("spec_decode_draft").in_scope(|| batch.count(&counters, 1))?;
            info_span!("spec_decode_verify").in_scope(|| -> Result<(), Box<dyn Error>> {
                (0..1 + step % 8).try_for_each(|_| batch.count(&counters, 0).map(drop))
            })?;
            Ok((begin, mark()?))
        })?;
        let outer = f64::from(around.elapsed_ms(&mark()?)?);
        let inner = f64::from(inside.0.elapsed_ms(&inside.1)?);
        let deadline = Instant::now() + Duration::from_secs(10);
        while matches!(handle.status("0").source, SourceState::InFlight(_)) && Instant::now() < deadline {
            handle.poll("0");
        }
        let after = gpu();
        let took = |now: Duration, then: Duration| (now - then).as_secs_f64() * 1e3;
        let ours = took(after.step.time, before.step.time);
        let phases = took(after.draft.time, before.draft.time) + took(after.verify.time, before.verify.time);
        let [least, most] = [inner - TOLERANCE_MS, outer + TOLERANCE_MS];
        if ours < least || ours > most || phases > ours + TOLERANCE_MS {
            let times = format!("{inner} ms inside of it, {outer} ms around it, {phases} ms in its phases");
            return Err(format!("step {step} took {ours} ms, but {times}").into());
        }
        (inner_ms, ours_ms, outer_ms) = (inner_ms + inner, ours_ms + ours, outer_ms + outer);
    }
    let timed = gpu();
    expect("steps timed", [timed.step.steps, timed.draft.steps, timed.verify.steps], [steps as u64; 3])?;
    let mean_us = |ms: f64| ms * 1e3 / steps as f64;
    Ok(json!({
        "steps": steps,
        "mean_inside_us": mean_us(inner_ms),
        "mean_step_us": mean_us(ours_ms),
        "mean_around_us": mean_us(outer_ms),
    }))
}
