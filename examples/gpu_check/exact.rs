//! Random steps under the layer, launched one by one and by graph replay: the published totals are a CPU's.

use std::error::Error;
use std::time::Duration;

use cudarc::driver::sys;
use serde_json::json;
use tracing_spec_decode::cuda::DeviceCounters;
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

use crate::amounts::{Amounts, Outcome};
use crate::engine::{Batch, Counted, K, Random, expect, stream};

pub(crate) fn check(amounts: Amounts) -> Outcome {
    let provider = opentelemetry_sdk::metrics::SdkMeterProvider::builder().build();
    let (layer, handle) = builder().with_interval(Duration::from_millis(1)).with_meter_provider(&provider).build()?;
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let stream = stream()?;
    let counters = DeviceCounters::from_cudarc(&stream, K)?;
    let attached = handle.attach("0", counters.source()?)?;
    let mut random = Random::new(1);
    let batches = (0..16).map(|_| Batch::random(&stream, &mut random)).collect::<Result<Vec<_>, _>>()?;

    // Event tracking would put waits and records of cudarc's into the graphs.
    // SAFETY: one stream, and all slices outlive their use on it.
    unsafe { stream.context().disable_event_tracking() };
    stream.synchronize()?;
    let mut graphs = Vec::new();
    for (batch, form) in batches.iter().zip((0..3).cycle()) {
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let counted = batch.count(&counters, form)?;
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0))?.ok_or("no graph")?;
        graphs.push((graph, counted));
    }

    let mut expected = Counted::default();
    let mut replayed = 0usize;
    for _ in 0..amounts.steps {
        let span = step_span!(num_spec_tokens = K as u64);
        let counted = span.in_scope(|| -> Result<Counted, Box<dyn Error>> {
            let chosen = random.below(batches.len() as u64) as usize;
            if random.below(2) == 0 {
                replayed += 1;
                graphs[chosen].0.launch()?;
                return Ok(graphs[chosen].1);
            }
            batches[chosen].count(&counters, random.below(3))
        })?;
        expected.add(counted);
    }
    handle.flush(Duration::from_secs(30))?;
    let metrics = handle.metrics("0").ok_or("no metrics")?;
    expect("drafts", metrics.drafts, Some(expected.drafts))?;
    expect("draft tokens", metrics.draft_tokens, Some(expected.draft_tokens))?;
    expect("accepted", metrics.accepted_tokens, Some(expected.accepted))?;
    expect("emitted", metrics.emitted_tokens, Some(expected.emitted))?;
    stream.synchronize()?;
    drop(attached);
    provider.shutdown()?;
    Ok(json!({
        "steps": amounts.steps,
        "of_these_by_graph_replay": replayed,
        "draft_tokens": expected.draft_tokens,
        "accepted_tokens": expected.accepted,
        "emitted_tokens": expected.emitted,
    }))
}
