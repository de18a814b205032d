//! Once the registry has grown to its size, a step allocates nothing: by fields, with a source that is not due, and with
//! one whose copies are started and published.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use support::Device;
use tracing::field::Empty;
use tracing::info_span;
use tracing_spec_decode::{HostCounters, builder};
use tracing_subscriber::layer::SubscriberExt;

/// More than span ids that a thread has before they come back.
const WARM_UP: u64 = 20_000;
const STEPS: u64 = 5_000;

fn steps(count: u64, mut inside: impl FnMut()) {
    for step in 0..count {
        let span = info_span!("spec_decode_step", num_drafts = 1, num_draft_tokens = 4, num_accepted_tokens = Empty);
        span.in_scope(|| {
            inside();
            span.record("num_accepted_tokens", step % 5);
        });
    }
}

#[test]
fn neither_by_fields_nor_with_a_source_nor_where_it_is_sampled() {
    let (layer, handle) = builder().with_interval(Duration::from_secs(3600)).build().unwrap();
    let (sampling, sampled) = builder().with_interval(Duration::ZERO).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer).with(sampling));
    let device = Device::default();
    let _sampled = sampled.attach("0", device.source()).unwrap();
    let mut work = || device.add(1, 2);

    steps(WARM_UP, &mut work);
    let allocated = |steps: &mut dyn FnMut()| allocation_counter::measure(steps).count_total;
    assert_eq!(allocated(&mut || steps(STEPS, &mut work)), 0, "by fields, and sampled");

    let attached = handle.attach("0", device.source()).unwrap();
    assert_eq!(allocated(&mut || steps(STEPS, &mut work)), 0, "with a source that is not due");
    drop(attached);

    let mut counters = HostCounters::new();
    let _attached = handle.attach("0", counters.source()).unwrap();
    let mut count = || assert!(counters.record_draft(4, 1, 2));
    assert_eq!(allocated(&mut || steps(STEPS, &mut count)), 0, "with counters on the host");
    assert!(
        sampled.totals().engines[0]
            .collections
            .iter()
            .any(|(outcome, _, count)| *outcome == "resolved" && *count > STEPS)
    );
}
