//! An engine on a cudarc of its own, whose handles go into the raw constructor: see `../cudarc_neighbours.sh`.
use std::time::Duration;

use neighbour::driver::{CudaContext, DevicePtr};
use tracing_spec_decode::cuda::{CudaSource, RawParts, Words};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

fn main() {
    let (layer, handle) = builder().build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let mut block = stream.alloc_zeros::<i64>(1).unwrap();
    let raw = RawParts {
        device_ptr: block.device_ptr(&stream).0,
        words: 1,
        stream: stream.cu_stream().cast(),
        context: context.cu_ctx().cast(),
        ordinal: 0,
    };
    let source = unsafe { CudaSource::from_raw_parts(raw, Words::accepted_at(0), None) }.unwrap();
    let attached = handle.attach("0", source).unwrap();
    for step in 1..=10 {
        let span = step_span!(num_spec_tokens = 4, num_drafts = 1);
        span.in_scope(|| stream.memcpy_htod(&[3 * step], &mut block).unwrap());
    }
    handle.flush(Duration::from_secs(10)).unwrap();
    let metrics = handle.metrics("0").unwrap();
    assert_eq!((metrics.draft_tokens, metrics.accepted_tokens), (Some(40), Some(30)));
    drop(attached);
    println!("{metrics}");
}
