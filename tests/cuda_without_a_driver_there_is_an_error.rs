//! No driver, a stub, an old driver, no device, a missing function: each is an error that says what to do.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use std::process::{Command, Output};

use sim::{Engine, sim};
use tracing_spec_decode::cuda::{CudaError, CudaSource, DeviceCounters, driver_version};
use tracing_spec_decode::source::{CounterSource, Counters, Dead, SourceError};

const CHILD: &str = "CUDA_ERROR_CHILD";

/// Runs this test once more in a process of its own, where no driver has been opened yet.
fn in_child(test: &str, kind: &str) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, kind).output().unwrap()
}

fn kind_of_child() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// As with `panic = "abort"`: the first panic of the process ends it.
fn abort_at_panic() {
    std::panic::set_hook(Box::new(|_| std::process::abort()));
}

#[test]
fn each_has_its_error() {
    if let Some(kind) = kind_of_child() {
        abort_at_panic();
        let sim = (kind != "none").then(sim);
        let expected = match kind.as_str() {
            "none" => CudaError::NoDriver,
            "stub" => CudaError::StubLibrary,
            "old" => CudaError::DriverTooOld(11080),
            "no device" => CudaError::NoDevice,
            "init" => CudaError::Init(805),
            _ => CudaError::NoSuchDevice(3),
        };
        if let Some(sim) = &sim {
            match kind.as_str() {
                "stub" => sim.be_a_stub(),
                "old" => sim.set_version(11080),
                "no device" => sim.set_devices(0),
                "init" => sim.fault("cuInit", 805, 0, 1),
                _ => {}
            }
        }
        let made = unsafe { DeviceCounters::new(std::ptr::null_mut(), std::ptr::null_mut(), 3, 4, None) };
        let error = made.map(drop).unwrap_err();
        if kind == "none" && error != CudaError::NoDriver {
            println!("skipped: this machine has a driver, which answers: {error}");
            return;
        }
        assert_eq!(error, expected);
        println!("{error}");
        if let Some(sim) = &sim {
            // What was wrong may be mended: nothing of it is remembered.
            sim.work_again();
            sim.set_version(12080);
            sim.set_devices(1);
            assert_eq!(driver_version(), Ok(12080));
        }
        return;
    }
    for (kind, says) in [
        ("none", "install"),
        ("stub", "stub"),
        ("old", "update"),
        ("no device", "nvidia-smi"),
        ("init", "805"),
        ("ordinal", "device 3"),
    ] {
        let child = in_child("each_has_its_error", kind);
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && (said.contains(says) || said.contains("skipped")), "{kind}: {child:?}");
    }
}

/// `cargo test` puts the simulator's folder into the library path: nobody must find it there by the driver's name.
#[test]
fn the_simulator_is_not_found_by_accident() {
    if kind_of_child().is_some() {
        for name in ["libcuda.so", "libcuda.so.1"] {
            let found = unsafe { libloading::Library::new(name) };
            let is_ours = found.is_ok_and(|library| unsafe { library.get::<fn()>(b"simcuda_reset\0") }.is_ok());
            assert!(!is_ours, "{name}");
        }
        return;
    }
    let folder = sim::path().parent().unwrap().to_owned();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_simulator_is_not_found_by_accident"])
        .env(CHILD, "1")
        .env("LD_LIBRARY_PATH", folder)
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
}

#[test]
fn a_missing_function_is_named() {
    if kind_of_child().is_some() {
        abort_at_panic();
        let copy = std::env::temp_dir().join(format!("simcuda-{}.so", std::process::id()));
        let mut bytes = std::fs::read(sim::path()).unwrap();
        let name = b"\0cuStreamIsCapturing\0";
        let places: Vec<usize> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
        assert!(!places.is_empty());
        places.iter().for_each(|at| bytes[at + name.len() - 2] = b'x');
        std::fs::write(&copy, bytes).unwrap();
        let library = unsafe { libloading::Library::new(&copy) };
        std::fs::remove_file(&copy).unwrap();
        let _library = library.unwrap();
        assert_eq!(driver_version(), Err(CudaError::MissingSymbol("cuStreamIsCapturing")));
        return;
    }
    let child = in_child("a_missing_function_is_named", "1");
    assert!(child.status.success(), "{child:?}");
}

#[test]
fn in_a_forked_child_a_source_is_dead_and_makes_no_call() {
    let sim = sim();
    let engine = Engine::new(0);
    let mut source = engine.source();
    let mut counters = Counters::for_layout(source.layout());
    source.start().unwrap();
    // SAFETY: the child makes no allocation that could wait for a lock of another thread, and ends at once.
    let child = unsafe { libc_fork() };
    if child == 0 {
        let dead = Err(SourceError::Dead(Dead::NoDriver));
        let is_dead = source.start() == dead && source.poll(&mut counters).map(drop) == dead;
        let fine = is_dead && sim.forked_calls() == 0;
        unsafe { libc_exit(i32::from(!fine)) };
    }
    let mut status = 0;
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's answer");
    sim.settle();
    assert!(source.poll(&mut counters).is_ok());
}

/// Thread-local destructors may run when the driver is gone already: the process ends well all the same.
#[test]
fn a_source_that_outlives_the_driver_lets_the_process_end() {
    thread_local! {
        static LAST: std::cell::RefCell<Option<CudaSource>> = const { std::cell::RefCell::new(None) };
    }
    if kind_of_child().is_some() {
        abort_at_panic();
        let sim = sim();
        let engine = Engine::new(0);
        let mut source = engine.source();
        sim.hold(0, sim::ALL);
        source.start().unwrap();
        LAST.with(|last| *last.borrow_mut() = Some(source));
        sim.deinitialise();
        return;
    }
    let child = in_child("a_source_that_outlives_the_driver_lets_the_process_end", "1");
    assert!(child.status.success(), "{child:?}");
}

#[test]
fn a_driver_that_is_torn_down_is_no_error_of_a_drop() {
    let sim = sim();
    let engine = Engine::new(0);
    let (source, counters) = (engine.source(), DeviceCounters::from_cudarc(&engine.stream, 2).unwrap());
    sim.deinitialise();
    drop((source, counters));
    tracing_spec_decode::cuda::release_unused();
    sim.work_again();
}

unsafe extern "C" {
    #[link_name = "fork"]
    fn libc_fork() -> i32;
    #[link_name = "_exit"]
    fn libc_exit(code: i32) -> !;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
}
