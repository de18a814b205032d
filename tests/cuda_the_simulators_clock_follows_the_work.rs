//! What lies between two of the simulator's events is what the work between them costs, on any stream it came by.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use std::time::Duration;

use cudarc::driver::{CudaEvent, CudaStream, sys};
use sim::{Engine, KERNEL, RECORD, Sim, TO_DEVICE, sim};

fn mark(stream: &CudaStream) -> CudaEvent {
    stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).unwrap()
}

/// By the driver's own call, which waits for nothing: microseconds, or the code.
fn between(sim: &Sim, start: &CudaEvent, end: &CudaEvent) -> Result<f32, u32> {
    sim.settle();
    ask(start, end)
}

fn ask(start: &CudaEvent, end: &CudaEvent) -> Result<f32, u32> {
    let mut milliseconds = 0.0;
    match unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, start.cu_event(), end.cu_event()) } as u32 {
        0 => Ok((milliseconds * 1e3).round()),
        code => Err(code),
    }
}

#[test]
fn on_one_stream_over_two_and_by_a_graph() {
    let sim = sim();
    let engine = Engine::new(0);
    let block = engine.address();
    let work = |stream: &CudaStream| sim::set_on(stream, block, &[1]);
    sim.set_cost(TO_DEVICE, Duration::from_micros(10));

    let start = mark(&engine.stream);
    (0..3).for_each(|_| work(&engine.stream));
    let end = mark(&engine.stream);
    assert_eq!((between(&sim, &start, &end), ask(&end, &start), ask(&end, &end)), (Ok(30.0), Ok(-30.0), Ok(0.0)));

    // Another stream's clock is its own, until it waits.
    let other = engine.context.new_stream().unwrap();
    work(&other);
    let alone = mark(&other);
    assert_eq!(between(&sim, &start, &alone), Ok(10.0));
    other.wait(&end).unwrap();
    work(&other);
    assert_eq!(between(&sim, &start, &mark(&other)), Ok(40.0));

    // The legacy stream waits for those that are blocking, and they for it.
    let legacy = engine.context.default_stream();
    let blocking = unsafe {
        let mut stream = std::ptr::null_mut();
        sys::cuStreamCreate(&raw mut stream, 0).result().unwrap();
        engine.context.wrap_borrowed_stream(stream)
    };
    let start = mark(&legacy);
    (0..2).for_each(|_| work(&blocking));
    work(&legacy);
    assert_eq!(between(&sim, &start, &mark(&blocking)), Ok(30.0));

    // Replayed work costs what it does now, not when it was captured.
    engine.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    (0..2).for_each(|_| work(&engine.stream));
    let graph = engine.stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
    sim.set_cost(TO_DEVICE, Duration::from_micros(100));
    sim.set_cost(KERNEL, Duration::from_secs(1));
    let start = mark(&engine.stream);
    graph.launch().unwrap();
    assert_eq!(between(&sim, &start, &mark(&engine.stream)), Ok(200.0));
    assert_eq!(sim.misuse(), "");
}

#[test]
fn events_that_have_not_come_to_pass_or_do_not_measure_have_no_time() {
    let sim = sim();
    let engine = Engine::new(0);
    let new = |flags| engine.context.new_event(Some(flags)).unwrap();
    let unrecorded = new(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let silent = new(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
    silent.record(&engine.stream).unwrap();
    let start = mark(&engine.stream);
    assert_eq!((between(&sim, &start, &unrecorded), between(&sim, &start, &silent)), (Err(400), Err(400)));
    sim.hold(0, RECORD);
    let end = mark(&engine.stream);
    assert_eq!(between(&sim, &start, &end), Err(600));
    sim.release(0, RECORD);
    assert_eq!(between(&sim, &start, &end), Ok(0.0));
    // Recorded anew, it is ahead again.
    sim.hold(0, RECORD);
    end.record(&engine.stream).unwrap();
    assert_eq!(between(&sim, &start, &end), Err(600));
    sim.release(0, RECORD);
}
