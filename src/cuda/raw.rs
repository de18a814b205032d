//! What a source is made of, as plain handles, and the checks that can be made of them.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::CudaError;
use super::driver::{Address, Driver, Handle, INVALID_VALUE, check};
use super::guard::Guard;

/// `CU_STREAM_PER_THREAD`: another stream on each thread.
pub(super) const PER_THREAD: usize = 2;

const MEMORY_TYPE: c_uint = 2;
const DEVICE_ORDINAL: c_uint = 9;
const RANGE_START: c_uint = 11;
const RANGE_SIZE: c_uint = 12;
const DEVICE_MEMORY: c_uint = 2;

/// A block of counters in device memory and the stream that updates it, by the driver's own handles.
///
/// They are the same whatever the engine reaches CUDA by: `cudaStream_t` is a `CUstream`, and libtorch gives both as
/// integers (`data_ptr()`, `cuda_stream`).
#[derive(Clone, Copy, Debug)]
pub struct RawParts {
    /// `CUdeviceptr` of the block, aligned to 8 bytes.
    pub device_ptr: u64,
    /// How many `i64` words the block has.
    pub words: usize,
    /// `CUstream` on which the block is updated. 0 and 1 mean the legacy default stream.
    pub stream: *mut c_void,
    /// `CUcontext` of all this. Null: the stream's, else the current one, else the device's primary context.
    pub context: *mut c_void,
    /// The device's ordinal inside this process.
    pub ordinal: i32,
}

/// A reference to a device's primary context, which keeps it alive.
struct Retained {
    driver: &'static Driver,
    device: c_int,
}

impl Drop for Retained {
    fn drop(&mut self) {
        if !self.driver.is_forked() {
            // SAFETY: it was retained once for this value, and nobody reads the answer: there is nothing left to do.
            let _ = unsafe { (self.driver.primary_release)(self.device) };
        }
    }
}

/// The context that everything of a source lives in.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    pub(super) handle: Handle,
    /// Set where it is a primary context: then it lives as long as this does.
    retained: Option<Arc<Retained>>,
}

// SAFETY: a context is a name that the driver takes on any thread.
unsafe impl Send for Context {}
// SAFETY: as above; nothing is behind the handle that this process could read.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.handle).finish()
    }
}

impl Context {
    /// Finds the context that is meant, and holds on to it if it can be held.
    ///
    /// # Safety
    ///
    /// A stream or a context that is not null is a living handle.
    pub(super) unsafe fn find(stream: Handle, context: Handle, ordinal: i32) -> Result<Self, CudaError> {
        let driver = Driver::get()?;
        let mut device = 0;
        // SAFETY: the pointers are to locals of the types that the functions fill in; the handles are the caller's.
        unsafe {
            match (driver.device_get)(&raw mut device, ordinal) {
                101 => return Err(CudaError::NoSuchDevice(ordinal)),
                code => check("cuDeviceGet", code)?,
            }
            let mut owner = ptr::null_mut();
            if stream.addr() > PER_THREAD {
                check("cuStreamGetCtx", (driver.stream_context)(stream, &raw mut owner))?;
                if !context.is_null() && owner != context {
                    return Err(CudaError::Invalid("the stream belongs to another context than the one given"));
                }
            } else if !context.is_null() {
                owner = context;
            } else {
                check("cuCtxGetCurrent", (driver.context_get)(&raw mut owner))?;
            }
            // A primary context that is not there is not made, unless it is the only one that can be meant.
            let (mut flags, mut is_active) = (0, 0);
            check("cuDevicePrimaryCtxGetState", (driver.primary_state)(device, &raw mut flags, &raw mut is_active))?;
            if is_active == 0 && !owner.is_null() {
                return Ok(Self { driver, handle: owner, retained: None });
            }
            let mut primary = ptr::null_mut();
            check("cuDevicePrimaryCtxRetain", (driver.primary_retain)(&raw mut primary, device))?;
            let retained = Arc::new(Retained { driver, device });
            if owner.is_null() || owner == primary {
                return Ok(Self { driver, handle: primary, retained: Some(retained) });
            }
            Ok(Self { driver, handle: owner, retained: None })
        }
    }

    pub(super) fn enter(&self) -> Result<Guard, CudaError> {
        Guard::enter(self.driver, self.handle)
    }

    /// Whether it can't end while this value lives.
    pub(super) fn is_held(&self) -> bool {
        self.retained.is_some()
    }
}

/// Refuses a stream that is being captured. A driver's error here means the same: the legacy stream can't be asked
/// while another stream of the context is being captured.
///
/// # Safety
///
/// The stream is a living handle of the context that the guard has put in place.
pub(super) unsafe fn refuse_capturing(driver: &Driver, stream: Handle, _inside: &Guard) -> Result<(), CudaError> {
    let mut status = 0;
    // SAFETY: the pointer is to a local of the type that the function fills in.
    match unsafe { (driver.stream_capturing)(stream, &raw mut status) } {
        0 if status == 0 => Ok(()),
        0 | 900..=908 => Err(CudaError::Capturing),
        code => Err(CudaError::Driver("cuStreamIsCapturing", code)),
    }
}

/// Refuses what is no block of so many words in memory of this device.
pub(super) fn check_block(driver: &Driver, raw: &RawParts, _inside: &Guard) -> Result<(), CudaError> {
    let invalid = |what| Err(CudaError::Invalid(what));
    if raw.device_ptr == 0 || !raw.device_ptr.is_multiple_of(8) {
        return invalid("the block of counters is not aligned to 8 bytes, or is null");
    }
    let end = u64::try_from(raw.words).ok().and_then(|words| raw.device_ptr.checked_add(words.checked_mul(8)?));
    let Some(end) = end.filter(|_| raw.words > 0) else {
        return invalid("the block of counters has no words, or too many");
    };
    let mut kind: c_uint = 0;
    let mut ordinal: c_int = -1;
    let mut start: Address = 0;
    let mut bytes: usize = 0;
    let ask = |attribute, place: Handle| {
        // SAFETY: each place is a local of the type that the driver documents for this attribute.
        unsafe { (driver.pointer_attribute)(place, attribute, raw.device_ptr) }
    };
    match ask(MEMORY_TYPE, (&raw mut kind).cast()) {
        INVALID_VALUE => return invalid("the block of counters is no memory that CUDA knows"),
        code => check("cuPointerGetAttribute", code)?,
    }
    if kind != DEVICE_MEMORY {
        return invalid("the block of counters is not in device memory");
    }
    check("cuPointerGetAttribute", ask(DEVICE_ORDINAL, (&raw mut ordinal).cast()))?;
    if ordinal != raw.ordinal {
        return invalid("the block of counters is in the memory of another device");
    }
    check("cuPointerGetAttribute", ask(RANGE_START, (&raw mut start).cast()))?;
    check("cuPointerGetAttribute", ask(RANGE_SIZE, (&raw mut bytes).cast()))?;
    let last = u64::try_from(bytes).ok().and_then(|bytes| start.checked_add(bytes));
    if raw.device_ptr < start || last.is_none_or(|last| end > last) {
        return invalid("the block of counters reaches beyond its allocation");
    }
    Ok(())
}
