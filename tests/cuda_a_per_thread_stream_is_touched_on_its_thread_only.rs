//! A per-thread stream names another stream on each thread: it is accepted as such, and sampled on its own thread only.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use std::ffi::c_void;
use std::time::Duration;

use sim::{Engine, sample, set_on, sim};
use tracing_spec_decode::cuda::{CudaError, CudaSource, DeviceCounters, Lengths, RawParts};
use tracing_spec_decode::source::{Busy, CounterSource, SourceError};
use tracing_spec_decode::{FlushFailure, builder};
use tracing_subscriber::Registry;

#[test]
fn the_source_remembers_the_thread() {
    let sim = sim();
    let engine = Engine::new(0);
    let per_thread = engine.context.per_thread_stream();
    let general = CudaSource::from_cudarc(engine.counters.clone(), per_thread.clone(), Engine::words());
    assert_eq!(general.map(drop), Err(CudaError::PerThreadStream));
    let raw = RawParts {
        device_ptr: engine.address(),
        words: 2,
        stream: 2 as *mut c_void,
        context: std::ptr::null_mut(),
        ordinal: 0,
    };
    let general = unsafe { CudaSource::from_raw_parts(raw, Engine::words(), None) };
    assert_eq!(general.map(drop), Err(CudaError::PerThreadStream));

    let words = Engine::words();
    let mut source = CudaSource::from_cudarc_per_thread(engine.counters.clone(), per_thread.clone(), words).unwrap();
    set_on(&per_thread, engine.address(), &[3, 4]);
    assert_eq!(sample(&sim, &mut source).accepted, 3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (answer, calls) = sim.calls_of(|| source.start());
            assert_eq!((answer, calls.len()), (Err(SourceError::Busy(Busy::WrongThread)), 0));
        });
    });
    set_on(&per_thread, engine.address(), &[5, 6]);
    assert_eq!(sample(&sim, &mut source).accepted, 5);
    assert_eq!(sim.misuse(), "");
}

#[test]
fn a_flush_from_another_thread_says_so() {
    let _sim = sim();
    let engine = Engine::new(0);
    let (layer, handle) = builder().build::<Registry>().unwrap();
    let counters = DeviceCounters::from_cudarc(&engine.context.per_thread_stream(), 2).unwrap();
    let _attached = handle.attach("0", counters.source().unwrap()).unwrap();
    let elsewhere = || handle.flush(Duration::from_millis(10)).unwrap_err();
    let error = std::thread::scope(|scope| scope.spawn(elsewhere).join().unwrap());
    assert_eq!(error.failures().collect::<Vec<_>>(), [("0", FlushFailure::WrongThread)]);
    handle.flush(Duration::from_secs(5)).unwrap();
    drop(layer);
}

#[test]
fn so_do_the_counters() {
    let _sim = sim();
    let engine = Engine::new(0);
    let counters = DeviceCounters::from_cudarc(&engine.context.per_thread_stream(), 2).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lengths = Lengths { drafted: 0, accepted: 0, emitted: 0, batch: 1 };
            assert_eq!(unsafe { counters.count_lengths(lengths) }, Err(CudaError::WrongThread));
            assert_eq!(counters.source().map(drop), Err(CudaError::WrongThread));
        });
    });
}
