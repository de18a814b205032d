//! Whichever call of a mark fails, and however: the sample is whole, nothing waits, and the thread is as it was.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use std::time::Duration;

use cudarc::driver::sys;
use sim::{Engine, FOR_EVER, Sim, count_on_device, sim};
use tracing::info_span;
use tracing_spec_decode::cuda::{CudaError, release_unused};
use tracing_spec_decode::{EngineTotals, GpuTotals, SourceState, builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

/// The functions of a mark, and how often one step's six marks call each.
const OF_A_MARK: [(&str, u64); 6] = [
    ("cuCtxGetCurrent", 6),
    ("cuCtxPushCurrent_v2", 6),
    ("cuThreadExchangeStreamCaptureMode", 12),
    ("cuStreamIsCapturing", 6),
    ("cuEventRecord", 6),
    ("cuCtxPopCurrent_v2", 6),
];

const WAITS: [&str; 6] = [
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuMemAlloc_v2",
    "cuMemHostAlloc",
];

/// Three sampled steps, the second of them with a fault; each is 3 accepted and 4 emitted tokens.
fn three_steps(break_it: impl FnOnce(&Sim), mend_it: impl FnOnce(&Sim)) -> EngineTotals {
    let sim = sim();
    let engine = Engine::new(0);
    let before = sim.live_handles();
    let (clock, mock) = quanta::Clock::mock();
    let (layer, handle) = builder().with_clock(clock).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let attached = handle.attach("0", engine.source().with_gpu_time().unwrap()).unwrap();
    let block = engine.address();
    // From here on the engine makes no driver call: the faults are the layer's alone.
    unsafe { sys::cuCtxSetCurrent(std::ptr::null_mut()) }.result().unwrap();
    let me = sim.thread();
    let waits = || WAITS.iter().map(|function| sim.calls(me, function)).sum::<u64>();
    let waited = waits();
    let step = || {
        step_span!(num_spec_tokens = 4, num_drafts = 1).in_scope(|| {
            info_span!("spec_decode_draft").in_scope(|| ());
            info_span!("spec_decode_verify").in_scope(|| ());
            count_on_device(block);
        });
        sim.settle();
    };
    // Published by the next one that is sampled.
    let sampled = || {
        mock.increment(Duration::from_secs(6));
        step();
        step();
    };
    sampled();
    break_it(&sim);
    sampled();
    mend_it(&sim);
    mock.increment(Duration::from_secs(400));
    sampled();
    // A context that can't be popped stays, and then needs no pop.
    assert_eq!((waits(), sim.context_depth() <= 1, sim.capture_mode()), (waited, true, 0));
    let dead = handle.status("0").source == SourceState::Dead;
    if !dead {
        handle.flush(Duration::from_secs(5)).unwrap();
    }
    let totals = handle.totals().engines.remove(0);
    if !dead {
        assert_eq!((totals.draft_tokens, totals.accepted_tokens, totals.emitted_tokens), (24, 18, Some(24)));
    }
    drop(attached);
    engine.context.bind_to_thread().unwrap();
    sim.settle();
    assert_eq!((release_unused(), sim.misuse().as_str()), (0, ""));
    assert_eq!(sim.live_handles(), before);
    totals
}

fn counts(gpu: &GpuTotals) -> [u64; 3] {
    [gpu.step.steps, gpu.draft.steps, gpu.verify.steps]
}

#[test]
fn without_a_fault_all_three_are_timed() {
    let totals = three_steps(|_| (), |_| ());
    assert_eq!((counts(&totals.gpu), totals.collections), ([3, 3, 3], vec![("resolved", None, 4)]));
}

#[test]
fn one_call_that_fails_costs_its_part_the_time() {
    for (function, calls) in OF_A_MARK {
        for skip in 0..calls {
            let totals = three_steps(|sim| sim.fault(function, 2, skip, 1), |_| ());
            let case = format!("{function}, call {skip}: {:?}", totals.gpu);
            assert_eq!(totals.collections, [("resolved", None, 4)], "{case}");
            let lost: u64 = counts(&totals.gpu).iter().map(|steps| 3 - steps).sum();
            // A call on the way back is made a second time, and mends it. A step without its begin has no phases.
            let is_mended = function == "cuCtxPopCurrent_v2" || (calls == 12 && skip % 2 == 1);
            let expected = match skip * 6 / calls {
                _ if is_mended => 0,
                0 | 5 => 3,
                _ => 1,
            };
            assert_eq!(lost, expected, "{case}");
        }
    }
}

#[test]
fn a_driver_that_does_not_tell_the_time_gives_none() {
    for code in [1, 400, 600, 999] {
        for skip in 0..3 {
            let totals = three_steps(|sim| sim.fault("cuEventElapsedTime_v2", code, skip, FOR_EVER), Sim::heal);
            assert_eq!(totals.collections, [("resolved", None, 4)]);
            let expected = [[2, 2, 2], [3, 2, 2], [3, 3, 2]][skip as usize];
            assert_eq!(counts(&totals.gpu), expected, "{code} after {skip}");
        }
    }
}

#[test]
fn an_error_that_stays_ends_the_source_at_the_copy_and_not_at_the_mark() {
    for (function, _) in OF_A_MARK {
        let totals = three_steps(|sim| sim.fault(function, 700, 0, FOR_EVER), Sim::heal);
        assert_eq!(counts(&totals.gpu), [1, 1, 1], "{function}");
        assert_eq!(totals.collections, [("resolved", None, 1), ("lost", Some("device_lost"), 1)], "{function}");
    }
}

#[test]
fn events_that_can_not_be_made_are_an_error_of_the_asking() {
    let sim = sim();
    let engine = Engine::new(0);
    let before = sim.live_handles();
    for skip in 0..6 {
        sim.fault("cuEventCreate", 2, skip + 2, 1);
        let refused = engine.source().with_gpu_time().map(drop);
        assert_eq!(refused, Err(CudaError::Driver("cuEventCreate", 2)));
        assert_eq!((release_unused(), sim.live_handles()), (0, before.clone()));
    }
    assert_eq!(sim.misuse(), "");
}
