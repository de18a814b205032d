//! The engine submits steps without looking back: no sample may mix two instants of its stream.

use serde_json::json;
use tracing_spec_decode::cuda::DeviceCounters;
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

use crate::amounts::{Amounts, Outcome};
use crate::engine::{Batch, Counted, K, Random, expect, stream};

pub(crate) fn check(amounts: Amounts) -> Outcome {
    let stream = stream()?;
    let counters = DeviceCounters::from_cudarc(&stream, K)?;
    let mut source = counters.source()?;
    let batch = Batch::random(&stream, &mut Random::new(2))?;
    stream.synchronize()?;
    let one = batch.counted(0);
    let mut read = Counters::for_layout(source.layout());
    let (mut samples, mut submitted, mut last) = (0u64, 0u64, 0u64);
    source.start()?;
    while samples < amounts.samples as u64 {
        batch.count(&counters, 0)?;
        submitted += 1;
        if source.poll(&mut read)? == Snapshot::Landed {
            samples += 1;
            let steps = read.drafts / one.drafts.max(1);
            let found = Counted {
                drafts: read.drafts,
                draft_tokens: read.draft_tokens,
                accepted: read.accepted,
                emitted: read.emitted,
            };
            let expected = Counted {
                drafts: one.drafts * steps,
                draft_tokens: one.draft_tokens * steps,
                accepted: one.accepted * steps,
                emitted: one.emitted * steps,
            };
            expect("a sample of whole steps", found, expected)?;
            expect("accepted per position", read.accepted_per_position.iter().sum(), read.accepted)?;
            expect("drafted per position", read.draft_per_position.iter().sum(), read.draft_tokens)?;
            expect("never falling, never ahead", last <= steps && steps <= submitted, true)?;
            last = steps;
            source.start()?;
        }
        if submitted.is_multiple_of(1_000) {
            stream.synchronize()?;
        }
    }
    stream.synchronize()?;
    Ok(json!({ "samples": samples, "steps": submitted, "torn": 0 }))
}
