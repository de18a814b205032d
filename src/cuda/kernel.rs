//! The counting kernels, loaded and launched.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;

use super::CudaError;
use super::driver::{Address, Driver, Handle, check};
use super::guard::Guard;

/// What NVRTC makes of `count.cu`, beside which it lies: `tools/kernel_ptx.py` makes it anew, and checks it.
const PTX: &str = concat!(include_str!("count.ptx"), "\0");

const THREADS: c_uint = 128;
const MOST_BLOCKS: c_uint = 64;

/// The kernels by their place in [`Kernels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Mask,
    Tokens,
    Lengths,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    mask: Handle,
    tokens: Handle,
    lengths: Handle,
}

impl Kernels {
    /// Loads them: the module comes first, so that it can be unloaded.
    pub(super) fn load(driver: &Driver, _inside: &Guard) -> Result<(Handle, Self), CudaError> {
        let mut module = ptr::null_mut();
        // SAFETY: the PTX ends in a NUL, and the pointer is to a local.
        check("cuModuleLoadData", unsafe { (driver.module_load)(&raw mut module, PTX.as_ptr().cast::<c_char>()) })?;
        let find = |name: &CStr| {
            let mut function = ptr::null_mut();
            // SAFETY: the module was just loaded, and the name ends in a NUL.
            let code = unsafe { (driver.module_function)(&raw mut function, module, name.as_ptr()) };
            check("cuModuleGetFunction", code).map(|()| function)
        };
        let found = find(c"spec_decode_count_mask").and_then(|mask| {
            let tokens = find(c"spec_decode_count_tokens")?;
            Ok(Self { mask, tokens, lengths: find(c"spec_decode_count_lengths")? })
        });
        if found.is_err() {
            // SAFETY: loaded above, and nothing of it is in use.
            let _ = unsafe { (driver.module_unload)(module) };
        }
        found.map(|kernels| (module, kernels))
    }

    fn function(self, form: Form) -> Handle {
        match form {
            Form::Mask => self.mask,
            Form::Tokens => self.tokens,
            Form::Lengths => self.lengths,
        }
    }

    /// Counts a batch: one launch, whatever its size.
    ///
    /// # Safety
    ///
    /// The arguments are those of the kernel, in number and type, and what they point to is there until it has run. The
    /// context of the kernels is in place.
    pub(super) unsafe fn launch(
        self,
        driver: &Driver,
        form: Form,
        stream: Handle,
        rows: c_uint,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        let blocks = rows.div_ceil(THREADS).clamp(1, MOST_BLOCKS);
        let function = self.function(form);
        // SAFETY: the caller vouches for the arguments, which the driver has copied when the call returns.
        check("cuLaunchKernel", unsafe {
            (driver.launch)(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments.as_mut_ptr(), ptr::null_mut())
        })
    }
}

/// The address of an argument, as a launch takes it.
pub(super) fn place<T>(argument: &mut T) -> *mut c_void {
    ptr::from_mut(argument).cast()
}

/// A null address is an argument like any other.
pub(super) const NOWHERE: Address = 0;
