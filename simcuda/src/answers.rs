//! The driver's answers that the simulator gives, with their names.

use std::ffi::{CStr, c_char};

use crate::entry::driver;

/// What a call comes to: nothing, or the code it answers with.
pub(crate) type Answer<T = ()> = Result<T, u32>;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(#[allow(dead_code)] pub(crate) const $name: u32 = $code;)*
        fn texts(code: u32) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                $($code => Some((
                    // SAFETY: both literals end in their only NUL.
                    unsafe { CStr::from_bytes_with_nul_unchecked(concat!("CUDA_ERROR_", stringify!($name), "\0").as_bytes()) },
                    unsafe { CStr::from_bytes_with_nul_unchecked(concat!($text, " (simulated)\0").as_bytes()) },
                )),)*
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0, "no error";
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "not initialised";
    DEINITIALIZED = 4, "the driver is shutting down";
    STUB_LIBRARY = 34, "a stub library";
    NO_DEVICE = 100, "no device";
    INVALID_DEVICE = 101, "no such device";
    INVALID_IMAGE = 200, "not a module";
    INVALID_CONTEXT = 201, "no such context, or none current";
    INVALID_HANDLE = 400, "no such handle";
    ILLEGAL_STATE = 401, "not in this state";
    NOT_FOUND = 500, "no such name";
    NOT_READY = 600, "not ready";
    ILLEGAL_ADDRESS = 700, "illegal address";
    CONTEXT_IS_DESTROYED = 709, "the context is destroyed";
    NOT_SUPPORTED = 801, "not supported";
    CAPTURE_UNSUPPORTED = 900, "not permitted while a stream is capturing";
    CAPTURE_INVALIDATED = 901, "the capture was invalidated";
    CAPTURE_MERGE = 902, "two captures would merge";
    CAPTURE_UNMATCHED = 903, "not the stream that began the capture";
    CAPTURE_UNJOINED = 904, "a forked stream was not joined";
    CAPTURE_ISOLATION = 905, "a dependency crosses the capture's boundary";
    CAPTURE_IMPLICIT = 906, "an implicit dependency on the legacy stream";
    CAPTURED_EVENT = 907, "the event was recorded in a capture";
    CAPTURE_WRONG_THREAD = 908, "the capture was begun on another thread";
    UNKNOWN = 999, "unknown";
}

/// Whether every later call in the context answers with this code too.
pub(crate) fn is_sticky(code: u32) -> bool {
    matches!(code, 700 | 702 | 710 | 714..=719)
}

driver! {
    fn cuGetErrorString(code: u32, text: *mut *const c_char) {
        let (_, description) = texts(code).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller passes a place for one pointer.
        unsafe { *text = description.as_ptr() };
        Ok(())
    }

    fn cuGetErrorName(code: u32, text: *mut *const c_char) {
        let (name, _) = texts(code).ok_or(INVALID_VALUE)?;
        // SAFETY: as above.
        unsafe { *text = name.as_ptr() };
        Ok(())
    }
}
