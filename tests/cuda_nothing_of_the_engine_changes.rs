//! Current context, capture mode and cudarc's error state are the same before and after everything, with two devices.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use std::sync::Arc;

use cudarc::driver::sys::{self, CUstreamCaptureMode as Mode};
use cudarc::driver::{CudaContext, DriverError};
use sim::{Engine, Sim, sim};
use tracing_spec_decode::cuda::{DeviceCounters, Lengths};
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

fn current() -> usize {
    let mut context = std::ptr::null_mut();
    unsafe { sys::cuCtxGetCurrent(&raw mut context) }.result().unwrap();
    context as usize
}

fn set_current(context: sys::CUcontext) {
    unsafe { sys::cuCtxSetCurrent(context) }.result().unwrap();
}

/// What `f` may not change.
fn unchanged<T>(sim: &Sim, f: impl FnOnce() -> T) -> T {
    let state = || (current(), sim.context_depth(), sim.capture_mode());
    let before = state();
    let value = f();
    assert_eq!(state(), before);
    value
}

#[test]
fn whichever_context_is_current_and_whatever_the_mode() {
    let sim = sim();
    sim.set_devices(2);
    let engines = [Engine::new(0), Engine::new(1)];
    for mode in [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL] {
        for context in [std::ptr::null_mut(), engines[0].context.cu_ctx(), engines[1].context.cu_ctx()] {
            for engine in &engines {
                // An error that the engine has not looked at yet stays there to be looked at.
                engine.context.record_err::<()>(Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)));
                set_current(engine.context.cu_ctx());
                let mut swapped = mode;
                unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut swapped) }.result().unwrap();
                set_current(context);
                a_life(&sim, engine);
                assert!(engine.context.check_err().is_err());
                assert!(engine.context.check_err().is_ok());
                assert_eq!((engine.context.is_event_tracking(), Arc::strong_count(&engine.counters)), (true, 1));
            }
        }
    }
    assert_eq!(sim.misuse(), "");
}

fn a_life(sim: &Sim, engine: &Engine) {
    let mut source = unchanged(sim, || engine.source());
    let counters = unchanged(sim, || DeviceCounters::from_cudarc(&engine.stream, 4)).unwrap();
    let mut own = unchanged(sim, || counters.source()).unwrap();
    let nothing = Lengths { drafted: 0, accepted: 0, emitted: 0, batch: 0 };
    unchanged(sim, || unsafe { counters.count_lengths(nothing) }).unwrap();
    for source in [&mut source, &mut own] {
        let mut counters = Counters::for_layout(source.layout());
        unchanged(sim, || source.start()).unwrap();
        sim.settle();
        assert_eq!(unchanged(sim, || source.poll(&mut counters)), Ok(Snapshot::Landed));
    }
    unchanged(sim, || drop(source));
    unchanged(sim, || drop(own));
    unchanged(sim, || drop(counters));
}

#[test]
fn the_last_owner_of_the_engines_slice_may_be_the_source() {
    let sim = sim();
    sim.set_devices(2);
    let other = CudaContext::new(1).unwrap();
    let engine = Engine::new(0);
    let source = engine.source();
    let Engine { context, stream, counters } = engine;
    drop(counters);
    other.bind_to_thread().unwrap();
    unchanged(&sim, || drop(source));
    sim.settle();
    drop((stream, context));
    assert_eq!(sim.misuse(), "");
}
