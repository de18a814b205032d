//! An engine that runs three steps ahead of what it closes: every sample of a whole block is one instant of its stream.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use cudarc::driver::sys;
use sim::{DEVICE_COPY, Engine, KERNEL, MID_COPY, sim, upload};
use tracing_spec_decode::cuda::{CudaSource, DeviceCounters, Lengths};
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

const DRAFTED: [i32; 4] = [3, 2, 0, 3];
const ACCEPTED: [i32; 4] = [3, 1, 0, 0];
const EMITTED: [i32; 4] = [4, 2, 1, 1];

fn counters(engine: &Engine) -> (DeviceCounters, Lengths) {
    let counters = DeviceCounters::from_cudarc(&engine.stream, 3).unwrap();
    let lengths = Lengths {
        drafted: upload(&engine.stream, &DRAFTED),
        accepted: upload(&engine.stream, &ACCEPTED),
        emitted: upload(&engine.stream, &EMITTED),
        batch: 4,
    };
    (counters, lengths)
}

/// Whether these are the counts of a whole number of steps.
fn whole_steps(counters: &Counters) -> u64 {
    let steps = counters.drafts / 3;
    let expected = Counters {
        accepted: 4 * steps,
        emitted: 7 * steps,
        drafts: 3 * steps,
        draft_tokens: 8 * steps,
        accepted_per_position: [2, 1, 1].map(|tokens| tokens * steps).into(),
        draft_per_position: [3, 3, 2].map(|tokens| tokens * steps).into(),
        ..Counters::default()
    };
    assert_eq!(*counters, expected);
    steps
}

#[test]
fn the_order_of_the_stream_decides_what_is_in_a_sample() {
    let sim = sim();
    let engine = Engine::new(0);
    let (device, lengths) = counters(&engine);
    let mut source = device.source().unwrap();
    let mut counters = Counters::for_layout(source.layout());
    sim.settle();
    sim.hold(engine.handle(), KERNEL | DEVICE_COPY);
    let mut submitted = 0u64;
    for _ in 0..3 {
        unsafe { device.count_lengths(lengths) }.unwrap();
        submitted += 1;
    }
    for sampled in 1..50u64 {
        // The sample is asked for behind the steps submitted, and three more are submitted at once.
        source.start().unwrap();
        for _ in 0..3 {
            unsafe { device.count_lengths(lengths) }.unwrap();
        }
        let in_sample = submitted;
        submitted += 3;
        // The device catches up with the steps, not yet with the copy; then with it and one step beyond.
        sim.pass(engine.handle(), 3);
        sim.settle();
        assert_eq!(source.poll(&mut counters), Ok(Snapshot::Pending));
        sim.pass(engine.handle(), 1);
        sim.settle();
        assert_eq!(source.poll(&mut counters), Ok(Snapshot::Landed));
        assert_eq!((whole_steps(&counters), in_sample), (3 * sampled, 3 * sampled));
    }
    sim.release(engine.handle(), KERNEL | DEVICE_COPY);
    sim.settle();
    assert_eq!(sim.misuse(), "");
}

#[test]
fn a_copy_that_takes_its_time_is_not_torn() {
    let sim = sim();
    let engine = Engine::new(0);
    let (device, lengths) = counters(&engine);
    let mut source = device.source().unwrap();
    let mut counters = Counters::for_layout(source.layout());
    let mut last = 0;
    for round in 1..20u64 {
        // Every copy stops half-way, on the engine's stream and on ours, while the engine submits and runs further.
        sim.hold(0, MID_COPY);
        unsafe { device.count_lengths(lengths) }.unwrap();
        source.start().unwrap();
        unsafe { device.count_lengths(lengths) }.unwrap();
        sim.settle();
        assert_eq!(source.poll(&mut counters), Ok(Snapshot::Pending));
        sim.release(0, MID_COPY);
        sim.settle();
        assert_eq!(source.poll(&mut counters), Ok(Snapshot::Landed));
        let steps = whole_steps(&counters);
        assert_eq!((steps, steps > last), (2 * round - 1, true));
        last = steps;
    }
}

/// The counterpart: a copy straight from the engine's block, on a stream of its own, is torn.
#[test]
fn without_the_snapshot_it_would_have_been() {
    let sim = sim();
    let engine = Engine::new(0);
    let (device, lengths) = counters(&engine);
    let side = engine.context.new_stream().unwrap();
    engine.context.bind_to_thread().unwrap();
    let pinned = unsafe { cudarc::driver::result::malloc_host(11 * 8, 0) }.unwrap();
    sim.settle();
    sim.hold(0, MID_COPY);
    let code = unsafe { sys::cuMemcpyDtoHAsync_v2(pinned, device.device_ptr(), 11 * 8, side.cu_stream()) };
    assert_eq!(code as u32, 0);
    sim.settle();
    unsafe { device.count_lengths(lengths) }.unwrap();
    sim.settle();
    sim.release(0, MID_COPY);
    sim.settle();
    let words = unsafe { std::slice::from_raw_parts(pinned.cast::<i64>(), 11) };
    assert_eq!((words[0], words[10]), (0, 1), "drafts from before the step, positions from after it");
}

#[test]
fn free_running_threads_find_no_torn_sample_either() {
    let sim = sim();
    let engine = Engine::new(0);
    let (device, lengths) = counters(&engine);
    let mut source: CudaSource = device.source().unwrap();
    let mut counters = Counters::for_layout(source.layout());
    let (mut last, mut samples) = (0, 0);
    for _ in 0..5_000 {
        unsafe { device.count_lengths(lengths) }.unwrap();
        match source.poll(&mut counters) {
            Ok(Snapshot::Pending) => continue,
            Ok(Snapshot::Landed) => {
                let steps = whole_steps(&counters);
                assert!(steps >= last);
                (last, samples) = (steps, samples + 1);
            }
            Err(_) => {}
        }
        source.start().unwrap();
    }
    sim.settle();
    source.poll(&mut counters).unwrap();
    assert!(samples > 0 && whole_steps(&counters) <= 5_000);
}
