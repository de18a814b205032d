//! The block of counters that we own on the device, with the module that counts into it.

use super::driver::{Address, Handle};
use super::guard::Guard;
use super::pool;
use super::raw::Context;

/// Freed in the pool, later, since freeing may wait for the device.
pub(super) struct Block {
    inner: Option<Memory>,
}

pub(super) struct Memory {
    pub(super) context: Context,
    pub(super) address: Address,
    pub(super) module: Handle,
}

// SAFETY: address and module are names that the driver takes on any thread.
unsafe impl Send for Memory {}
// SAFETY: as above; nothing of it can be read by this process.
unsafe impl Sync for Memory {}

impl Block {
    pub(super) fn new(context: Context, address: Address, module: Handle) -> Self {
        Self { inner: Some(Memory { context, address, module }) }
    }

    pub(super) fn address(&self) -> Address {
        self.inner.as_ref().map_or(0, |memory| memory.address)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.inner.take() {
            pool::give_back_block(memory);
        }
    }
}

impl Memory {
    pub(super) fn destroy(self, _inside: &Guard) {
        // SAFETY: both are ours and used by nobody any more; freeing waits for the work that is queued. An error leaves
        // nothing to do.
        unsafe {
            (self.context.driver.free)(self.address);
            (self.context.driver.module_unload)(self.module);
        }
    }
}
