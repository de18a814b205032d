//! The block of counters that we own on the device, with the module that counts into it.

use std::ptr;
use std::thread::ThreadId;

use super::CudaError;
use super::driver::{Address, Handle, SUCCESS, check};
use super::guard::Guard;
use super::pool;
use super::raw::{Context, refuse_capturing};

const DISABLE_TIMING: u32 = 2;

/// Freed in the pool, later: not before the engine's stream has done what it was given.
pub(super) struct Block {
    inner: Option<Memory>,
}

pub(super) struct Memory {
    pub(super) context: Context,
    stream: Handle,
    /// Where the stream is a per-thread one: the thread whose it is.
    thread: Option<ThreadId>,
    address: Address,
    module: Handle,
    /// Recorded behind the last use.
    unused: Handle,
    is_marked: bool,
}

// SAFETY: the handles are names that the driver takes on any thread; the per-thread stream is used only after a look at
// the thread.
unsafe impl Send for Memory {}
// SAFETY: as above; nothing of it can be read by this process.
unsafe impl Sync for Memory {}

impl Block {
    /// Takes over a module, also where this fails.
    pub(super) fn make(
        context: &Context,
        stream: Handle,
        thread: Option<ThreadId>,
        module: Handle,
        bytes: usize,
        inside: &Guard,
    ) -> Result<Self, CudaError> {
        let driver = context.driver;
        let context = context.clone();
        let (address, unused, is_marked) = (0, ptr::null_mut(), false);
        let mut memory = Memory { context, stream, thread, address, module, unused, is_marked };
        // SAFETY: the pointers are to fields of the types that the functions fill in.
        let made = unsafe {
            check("cuMemAlloc", (driver.alloc)(&raw mut memory.address, bytes))
                .and_then(|()| check("cuEventCreate", (driver.event_create)(&raw mut memory.unused, DISABLE_TIMING)))
        };
        match made {
            Ok(()) => Ok(Self { inner: Some(memory) }),
            Err(error) => {
                memory.destroy(inside);
                Err(error)
            }
        }
    }

    pub(super) fn address(&self) -> Address {
        self.inner.as_ref().map_or(0, |memory| memory.address)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(mut memory) = self.inner.take() else { return };
        if !memory.context.driver.is_forked() {
            memory.mark();
        }
        pool::give_back_block(memory);
    }
}

impl Memory {
    /// Marks the end of all use on the stream. Where that can't be done, on another thread than a per-thread stream's
    /// or within a capture, the block is never freed: nobody could say when it may be.
    fn mark(&mut self) {
        if self.thread.is_some_and(|thread| thread != std::thread::current().id()) {
            return;
        }
        let Ok(inside) = self.context.enter() else { return };
        let driver = self.context.driver;
        // SAFETY: whoever made the counters vouches that the stream outlives them; the event is ours.
        self.is_marked = unsafe {
            refuse_capturing(driver, self.stream, &inside).is_ok()
                && (driver.event_record)(self.unused, self.stream) == SUCCESS
        };
    }

    /// Whether the device is done with it.
    pub(super) fn is_settled(&self, _inside: &Guard) -> bool {
        // SAFETY: the event is ours, and was recorded.
        self.is_marked && unsafe { (self.context.driver.event_query)(self.unused) } == SUCCESS
    }

    /// Gives everything back to the driver. Only where it is settled, or was never used.
    pub(super) fn destroy(self, _inside: &Guard) {
        let driver = self.context.driver;
        // SAFETY: all is ours and used by nobody any more. An error leaves nothing to do.
        unsafe {
            if self.address != 0 {
                (driver.free)(self.address);
            }
            if !self.unused.is_null() {
                (driver.event_destroy)(self.unused);
            }
            (driver.module_unload)(self.module);
        }
    }
}
