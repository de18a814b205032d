//! The simulated driver as tests see it: opened by its path, reset for each test, asked afterwards.
#![allow(dead_code, unreachable_pub, missing_docs, unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, sys};
use libloading::Library;
use tracing_spec_decode::cuda::{CudaSource, Words};
use tracing_spec_decode::source::{CounterSource, Counters, Snapshot};

/// Classes of work that can be held.
pub const DEVICE_COPY: u32 = 1;
pub const TO_HOST: u32 = 2;
pub const TO_DEVICE: u32 = 4;
pub const RECORD: u32 = 8;
pub const KERNEL: u32 = 16;
pub const ALL: u32 = 255;
pub const MID_COPY: u32 = 256;

pub const FOR_EVER: u64 = u64::MAX;

/// Where `cargo test` puts the simulator: beside the test, or beside the folder of an example.
pub fn path() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let folder = exe.parent().unwrap();
    let here = folder.join("libsimcuda.so");
    if here.exists() { here } else { folder.parent().unwrap().join("deps/libsimcuda.so") }
}

pub struct Sim {
    library: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

/// The simulator, freshly reset and this test's alone. A test that hangs ends the process after a minute.
pub fn sim() -> Sim {
    static ALONE: Mutex<()> = Mutex::new(());
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let library = LIBRARY.get_or_init(|| {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(90));
            eprintln!("a test hangs: given up");
            std::process::abort();
        });
        unsafe { Library::new(path()) }.expect("the simulator is built with the tests")
    });
    let sim = Sim { library, _alone: alone };
    sim.call("simcuda_reset");
    sim
}

impl Sim {
    fn symbol<T>(&self, name: &str) -> libloading::Symbol<'_, T> {
        unsafe { self.library.get(name.as_bytes()) }.unwrap()
    }

    fn call(&self, name: &str) {
        self.symbol::<extern "C" fn()>(name)()
    }

    fn set(&self, name: &str, value: c_int) {
        self.symbol::<extern "C" fn(c_int)>(name)(value)
    }

    pub fn set_devices(&self, count: i32) {
        self.set("simcuda_set_devices", count);
    }

    pub fn set_version(&self, version: i32) {
        self.set("simcuda_set_version", version);
    }

    pub fn deinitialise(&self) {
        self.set("simcuda_set_mode", 1);
    }

    pub fn be_a_stub(&self) {
        self.set("simcuda_set_mode", 2);
    }

    pub fn work_again(&self) {
        self.set("simcuda_set_mode", 0);
    }

    pub fn be_strict(&self) {
        self.set("simcuda_set_strict", 1);
    }

    pub fn guard_pinned(&self) {
        self.set("simcuda_guard_pinned", 1);
    }

    pub fn hold(&self, stream: usize, classes: u32) {
        self.symbol::<extern "C" fn(usize, u32)>("simcuda_hold")(stream, classes)
    }

    pub fn release(&self, stream: usize, classes: u32) {
        self.symbol::<extern "C" fn(usize, u32)>("simcuda_release")(stream, classes)
    }

    pub fn pass(&self, stream: usize, operations: u32) {
        self.symbol::<extern "C" fn(usize, u32)>("simcuda_pass")(stream, operations)
    }

    /// What each operation of this class takes from here on, on the simulated clock of its stream.
    pub fn set_cost(&self, class: u32, time: Duration) {
        self.symbol::<extern "C" fn(u32, u64)>("simcuda_set_cost")(class, time.as_nanos() as u64);
    }

    /// Waits until no stream runs anything or could.
    pub fn settle(&self) {
        self.call("simcuda_settle");
    }

    pub fn pending(&self, stream: usize) -> u64 {
        self.symbol::<extern "C" fn(usize) -> u64>("simcuda_pending")(stream)
    }

    pub fn fault(&self, function: &str, code: u32, skip: u64, times: u64) {
        let name = CString::new(function).unwrap();
        let fault = self.symbol::<extern "C" fn(*const c_char, u32, u64, u64)>("simcuda_fault");
        fault(name.as_ptr(), code, skip, times);
    }

    pub fn heal(&self) {
        self.call("simcuda_heal");
    }

    pub fn thread(&self) -> u64 {
        self.symbol::<extern "C" fn() -> u64>("simcuda_thread")()
    }

    pub fn calls(&self, thread: u64, function: &str) -> u64 {
        let name = CString::new(function).unwrap();
        self.symbol::<extern "C" fn(u64, *const c_char) -> u64>("simcuda_calls")(thread, name.as_ptr())
    }

    pub fn forked_calls(&self) -> u64 {
        self.symbol::<extern "C" fn() -> u64>("simcuda_forked_calls")()
    }

    pub fn pageable_copies(&self) -> u64 {
        self.symbol::<extern "C" fn() -> u64>("simcuda_pageable_copies")()
    }

    pub fn live(&self, kind: &str) -> u64 {
        let kind = CString::new(kind).unwrap();
        self.symbol::<extern "C" fn(*const c_char) -> u64>("simcuda_live")(kind.as_ptr())
    }

    pub fn live_handles(&self) -> Vec<(&'static str, u64)> {
        ["stream", "event", "device", "pinned", "module", "graph", "retained"]
            .map(|kind| (kind, self.live(kind)))
            .into()
    }

    pub fn context_depth(&self) -> u64 {
        self.symbol::<extern "C" fn() -> u64>("simcuda_context_depth")()
    }

    pub fn capture_mode(&self) -> u32 {
        self.symbol::<extern "C" fn() -> u32>("simcuda_capture_mode")()
    }

    /// The driver calls that this thread makes in `f`, in order.
    pub fn calls_of<T>(&self, f: impl FnOnce() -> T) -> (T, Vec<String>) {
        self.set("simcuda_log", 1);
        let value = f();
        let thread = self.thread();
        let read = self.symbol::<extern "C" fn(u64, *mut u8, usize) -> usize>("simcuda_read_log");
        let calls = text(|place, room| read(thread, place, room));
        self.set("simcuda_log", 0);
        (value, calls.split_whitespace().map(str::to_owned).collect())
    }

    /// A context that is not primary, made current. (Which function makes one depends on cudarc's bindings.)
    pub fn create_context(&self) -> sys::CUcontext {
        let mut context = std::ptr::null_mut();
        let create = self.symbol::<extern "C" fn(*mut sys::CUcontext, u32, c_int) -> u32>("cuCtxCreate_v2");
        assert_eq!(create(&raw mut context, 0, 0), 0);
        context
    }

    pub fn misuse(&self) -> String {
        let read = self.symbol::<extern "C" fn(*mut u8, usize) -> usize>("simcuda_read_misuse");
        text(|place, room| read(place, room))
    }
}

fn text(read: impl Fn(*mut u8, usize) -> usize) -> String {
    let mut bytes = vec![0u8; read(std::ptr::null_mut(), 0)];
    let length = bytes.len();
    read(bytes.as_mut_ptr(), length);
    String::from_utf8(bytes).unwrap()
}

/// An engine on cudarc: a stream, and two counters, accepted and emitted, that it sets in the order of the stream.
pub struct Engine {
    pub context: Arc<CudaContext>,
    pub stream: Arc<CudaStream>,
    pub counters: Arc<CudaSlice<i64>>,
}

impl Engine {
    pub fn new(ordinal: usize) -> Self {
        let context = CudaContext::new(ordinal).unwrap();
        let stream = context.new_stream().unwrap();
        let counters = Arc::new(stream.alloc_zeros::<i64>(2).unwrap());
        Self { context, stream, counters }
    }

    pub fn words() -> Words {
        Words::accepted_at(0).with_emitted_at(1)
    }

    pub fn source(&self) -> CudaSource {
        CudaSource::from_cudarc(self.counters.clone(), self.stream.clone(), Self::words()).unwrap()
    }

    pub fn handle(&self) -> usize {
        self.stream.cu_stream() as usize
    }

    pub fn address(&self) -> u64 {
        self.counters.device_ptr(&self.stream).0
    }

    /// Enqueues new values.
    pub fn set(&self, accepted: i64, emitted: i64) {
        set_on(&self.stream, self.address(), &[accepted, emitted]);
    }
}

/// Enqueues a copy of these words.
pub fn set_on(stream: &CudaStream, to: u64, words: &[i64]) {
    stream.context().bind_to_thread().unwrap();
    unsafe { cudarc::driver::result::memcpy_htod_async(to, words, stream.cu_stream()) }.unwrap();
}

/// What a kernel of the engine's would do: three tokens accepted, four emitted.
pub fn count_on_device(block: u64) {
    for (word, tokens) in [(0, 3), (8, 4)] {
        // The simulator's device memory is this process's own.
        let word = unsafe { AtomicI64::from_ptr((block as usize + word) as *mut i64) };
        word.fetch_add(tokens, Ordering::Relaxed);
    }
}

/// An array on the device with these values.
pub fn upload<T: Copy>(stream: &CudaStream, values: &[T]) -> u64 {
    stream.context().bind_to_thread().unwrap();
    let bytes = size_of_val(values).max(8);
    let address = unsafe { cudarc::driver::result::malloc_sync(bytes) }.unwrap();
    if !values.is_empty() {
        let bytes = size_of_val(values);
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, values.as_ptr().cast::<c_void>(), bytes, stream.cu_stream()) };
        assert_eq!(code as u32, 0);
    }
    address
}

/// Starts a snapshot, lets it land, reads it.
pub fn sample(sim: &Sim, source: &mut CudaSource) -> Counters {
    let mut counters = Counters::for_layout(source.layout());
    source.start().unwrap();
    sim.settle();
    assert_eq!(source.poll(&mut counters), Ok(Snapshot::Landed));
    counters
}
