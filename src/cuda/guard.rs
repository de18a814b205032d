//! The brackets around everything that is asked of the driver: our context, and a capture mode that hurts nobody.
//!
//! While another thread captures a stream globally, a call of ours in the same mode would invalidate that capture, and
//! the engine would pay for it. In RELAXED mode it does not. The exchange needs a current context, so the context comes
//! first and goes last.

use std::ptr;

use super::CudaError;
use super::driver::{Code, Driver, Handle, SUCCESS, check};

const RELAXED: u32 = 2;

/// Context and capture mode put in place on this thread, and put back when dropped.
///
/// Four driver calls for the brackets, six where the context had to be pushed.
pub(super) struct Guard {
    driver: &'static Driver,
    is_pushed: bool,
    mode: u32,
    is_open: bool,
}

impl Guard {
    pub(super) fn enter(driver: &'static Driver, context: Handle) -> Result<Self, CudaError> {
        let mut guard = Self::enter_context(driver, context)?;
        // SAFETY: the pointer is to a field that lives through the call.
        check("cuThreadExchangeStreamCaptureMode", unsafe { (driver.exchange_mode)(&raw mut guard.mode) })?;
        guard.is_open = true;
        Ok(guard)
    }

    /// Only the context: for work that no capture forbids.
    pub(super) fn enter_context(driver: &'static Driver, context: Handle) -> Result<Self, CudaError> {
        let mut current = ptr::null_mut();
        // SAFETY: the pointer is to a local; the context was checked when it was taken, and is held or vouched for.
        unsafe {
            check("cuCtxGetCurrent", (driver.context_get)(&raw mut current))?;
            let is_pushed = current != context;
            if is_pushed {
                check("cuCtxPushCurrent", (driver.context_push)(context))?;
            }
            Ok(Self { driver, is_pushed, mode: RELAXED, is_open: false })
        }
    }

    /// Puts everything back, and says what the driver answered where that failed.
    pub(super) fn leave(mut self) -> Result<(), CudaError> {
        self.put_back()
    }

    /// Each call is made a second time where it fails: whatever else is wrong, the engine gets its thread back.
    fn put_back(&mut self) -> Result<(), CudaError> {
        let mut answer = Ok(());
        if std::mem::take(&mut self.is_open) {
            // SAFETY: the pointer is to a field that holds the mode that the thread had.
            let code = twice(|| unsafe { (self.driver.exchange_mode)(&raw mut self.mode) });
            answer = check("cuThreadExchangeStreamCaptureMode", code);
        }
        if std::mem::take(&mut self.is_pushed) {
            let mut popped = ptr::null_mut();
            // SAFETY: the pointer is to a local; what is popped is what was pushed.
            let code = twice(|| unsafe { (self.driver.context_pop)(&raw mut popped) });
            answer = answer.and(check("cuCtxPopCurrent", code));
        }
        answer
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.put_back();
    }
}

fn twice(mut call: impl FnMut() -> Code) -> Code {
    match call() {
        SUCCESS => SUCCESS,
        _ => call(),
    }
}
