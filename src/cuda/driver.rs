//! The driver library: found, checked and opened before the first call, once per process.
//!
//! The functions are called by the pointers found here and answer with plain numbers. That way a driver that lacks one
//! is an error and not a panic at the first call, and a code that no list knows is a code and not undefined behaviour.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use once_cell::race::OnceBox;

use super::CudaError;

/// `CUcontext`, `CUstream`, `CUevent` and the like: what the driver knows a thing by.
pub(super) type Handle = *mut c_void;
/// `CUdeviceptr`.
pub(super) type Address = u64;
/// `CUresult`, as a number.
pub(super) type Code = u32;

pub(super) const SUCCESS: Code = 0;
pub(super) const INVALID_VALUE: Code = 1;
pub(super) const NOT_READY: Code = 600;

macro_rules! functions {
    ($($field:ident: $name:ident($($argument:ty),*);)*) => {
        /// Every function of the driver that is used here.
        pub(super) struct Driver {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Code,)*
            /// CUDA does not survive a fork: in another process than this one no call is made.
            process: u32,
            /// `cuEventElapsedTime`, where the driver has it under a name that is known: nothing but times needs it.
            pub(super) elapsed: Option<Elapsed>,
            // Never closed, also where the driver is refused: the pointers above are into it, and a driver that has
            // been initialised is not made to be unloaded.
            _library: ManuallyDrop<Library>,
        }

        impl Driver {
            fn resolve(library: Library) -> Result<Self, CudaError> {
                let library = ManuallyDrop::new(library);
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is the signature that the driver's documentation gives this function.
                        let symbol = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *symbol.map_err(|_| CudaError::MissingSymbol(stringify!($name)))?
                    },)*
                    process: std::process::id(),
                    // SAFETY: the type is the signature that the documentation gives both.
                    elapsed: ELAPSED.into_iter().find_map(|name| unsafe { library.get(name).ok().map(|symbol| *symbol) }),
                    _library: library,
                })
            }
        }
    };
}

functions! {
    init: cuInit(c_uint);
    version: cuDriverGetVersion(*mut c_int);
    device_get: cuDeviceGet(*mut c_int, c_int);
    primary_retain: cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    primary_release: cuDevicePrimaryCtxRelease_v2(c_int);
    primary_state: cuDevicePrimaryCtxGetState(c_int, *mut c_uint, *mut c_int);
    context_get: cuCtxGetCurrent(*mut Handle);
    context_push: cuCtxPushCurrent_v2(Handle);
    context_pop: cuCtxPopCurrent_v2(*mut Handle);
    exchange_mode: cuThreadExchangeStreamCaptureMode(*mut c_uint);
    stream_create: cuStreamCreate(*mut Handle, c_uint);
    stream_destroy: cuStreamDestroy_v2(Handle);
    stream_wait: cuStreamWaitEvent(Handle, Handle, c_uint);
    stream_capturing: cuStreamIsCapturing(Handle, *mut c_uint);
    stream_context: cuStreamGetCtx(Handle, *mut Handle);
    event_create: cuEventCreate(*mut Handle, c_uint);
    event_destroy: cuEventDestroy_v2(Handle);
    event_record: cuEventRecord(Handle, Handle);
    event_query: cuEventQuery(Handle);
    alloc: cuMemAlloc_v2(*mut Address, usize);
    free: cuMemFree_v2(Address);
    fill: cuMemsetD8Async(Address, u8, usize, Handle);
    alloc_host: cuMemHostAlloc(*mut Handle, usize, c_uint);
    free_host: cuMemFreeHost(Handle);
    copy_on_device: cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle);
    copy_to_host: cuMemcpyDtoHAsync_v2(Handle, Address, usize, Handle);
    pointer_attribute: cuPointerGetAttribute(Handle, c_uint, Address);
    module_load: cuModuleLoadData(*mut Handle, *const c_char);
    module_unload: cuModuleUnload(Handle);
    module_function: cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    launch: cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle
    );
}

type Elapsed = unsafe extern "C" fn(*mut f32, Handle, Handle) -> Code;

/// Newer drivers have it under both names, older ones under the second.
const ELAPSED: [&[u8]; 2] = [b"cuEventElapsedTime_v2\0", b"cuEventElapsedTime\0"];

/// Older drivers can't load the counting kernels.
const OLDEST: c_int = 12000;

static DRIVER: OnceBox<Driver> = OnceBox::new();

impl Driver {
    /// The driver, opened and initialised at the first success. A failure is found anew each time.
    pub(super) fn get() -> Result<&'static Self, CudaError> {
        // Two threads that are first at once must not both open it. Nobody is here but those that make a source.
        static OPENING: Mutex<()> = Mutex::new(());
        if let Some(driver) = DRIVER.get() {
            return if driver.is_forked() { Err(CudaError::Forked) } else { Ok(driver) };
        }
        let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        DRIVER.get_or_try_init(|| open().map(Box::new))
    }

    /// Whether this process is a child forked from the one that opened the driver.
    pub(super) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }
}

/// `Err` with the function's name and code, unless it succeeded.
pub(super) fn check(function: &'static str, code: Code) -> Result<(), CudaError> {
    if code == SUCCESS { Ok(()) } else { Err(CudaError::Driver(function, code)) }
}

/// The CUDA version of the driver of this machine, as the driver writes it (12 080 is 12.8).
///
/// # Errors
///
/// Where there is no driver that a source could be made with, and why.
pub fn driver_version() -> Result<i32, CudaError> {
    let driver = Driver::get()?;
    let mut version = 0;
    // SAFETY: the pointer is to a local of the type that the function fills in.
    check("cuDriverGetVersion", unsafe { (driver.version)(&raw mut version) })?;
    Ok(version)
}

fn open() -> Result<Driver, CudaError> {
    let driver = Driver::resolve(library()?)?;
    let mut version = 0;
    // SAFETY: the pointer is to a local of the type that the function fills in; `cuInit` takes only 0.
    let (asked, initialised) = unsafe { ((driver.version)(&raw mut version), (driver.init)(0)) };
    match initialised {
        SUCCESS => {}
        34 => return Err(CudaError::StubLibrary),
        100 => return Err(CudaError::NoDevice),
        code => return Err(CudaError::Init(code)),
    }
    check("cuDriverGetVersion", asked)?;
    if version < OLDEST {
        return Err(CudaError::DriverTooOld(version));
    }
    Ok(driver)
}

/// The names under which the driver is installed: the order is cudarc's, so that both find the same file.
#[cfg(unix)]
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];
#[cfg(windows)]
const NAMES: [&str; 2] = ["cuda.dll", "nvcuda.dll"];

/// The library of the process, if the engine has loaded one (linked or not), else the one of the machine.
fn library() -> Result<Library, CudaError> {
    loaded().or_else(|| NAMES.iter().find_map(|name| new(name))).ok_or(CudaError::NoDriver)
}

fn new(name: &str) -> Option<Library> {
    // SAFETY: loading the driver runs its initialisers, as every CUDA program does.
    unsafe { Library::new(name) }.ok()
}

#[cfg(unix)]
fn loaded() -> Option<Library> {
    use libloading::os::unix;
    /// `dlopen`'s flag for "only if it is there already", which `libloading` has no name for.
    #[cfg(target_os = "linux")]
    const NO_LOAD: c_int = 4;
    #[cfg(not(target_os = "linux"))]
    const NO_LOAD: c_int = 0x10;
    // The one with the number first: a linked driver has that name, and a stub beside it has the other.
    NAMES.iter().rev().find_map(|name| {
        // SAFETY: nothing is loaded, so no initialiser runs.
        unsafe { unix::Library::open(Some(*name), unix::RTLD_LAZY | NO_LOAD) }.ok().map(Library::from)
    })
}

#[cfg(windows)]
fn loaded() -> Option<Library> {
    NAMES.iter().find_map(|name| libloading::os::windows::Library::open_already_loaded(name).ok().map(Library::from))
}
