//! Modules and launches: the counting kernels, by their host build.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::answers::{
    CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED,
};
use crate::entry::driver;
use crate::queue::Work;
use crate::state::sim;

unsafe extern "C" {
    fn simcuda_host_launch(kernel: c_int, arguments: *mut *mut c_void, grid: c_uint, block: c_uint);
}

/// The kernels that have a host build, in the order of its switch, with the sizes of their arguments.
const KERNELS: [(&str, &[usize]); 3] = [
    ("spec_decode_count_mask", &[8, 4, 8, 8, 4, 8, 4, 4]),
    ("spec_decode_count_tokens", &[8, 4, 8, 8, 4, 8, 4, 4]),
    ("spec_decode_count_lengths", &[8, 4, 8, 8, 8, 4]),
];

pub(crate) struct Module {
    context: usize,
    entries: Vec<String>,
    pub(crate) alive: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Function {
    module: usize,
    kernel: usize,
    /// Loaded lazily, at its first launch, as the driver does.
    launched: bool,
}

/// One launch, its arguments as they were when it was asked for.
pub(crate) struct Launch {
    kernel: usize,
    arguments: Vec<u64>,
    grid: c_uint,
    block: c_uint,
}

impl Launch {
    fn number(&self, index: usize) -> usize {
        // An `int` argument fills the low half of its word.
        self.arguments.get(index).map_or(0, |value| *value as u32 as i32).try_into().unwrap_or(0)
    }

    pub(crate) fn ranges(&self) -> Vec<(usize, usize)> {
        let pointer = |index: usize| self.arguments.get(index).map_or(0, |value| *value as usize);
        let mut ranges = vec![(pointer(0), (5 + 2 * self.number(1)) * 8)];
        if self.kernel == 2 {
            let rows = self.number(5) * 4;
            ranges.extend([2, 3, 4].map(|index| (pointer(index), rows)));
        } else {
            let (id, rows, k) = (self.number(4), self.number(6), self.number(7));
            let first = if self.kernel == 0 { rows * k } else { rows * k * id };
            ranges.extend([(pointer(2), first), (pointer(3), rows * (k + 1) * id), (pointer(5), rows * 4)]);
        }
        ranges.retain(|(address, bytes)| *address != 0 && *bytes != 0);
        ranges
    }

    pub(crate) fn run(&self) {
        let mut arguments = self.arguments.clone();
        let mut places: Vec<*mut c_void> = arguments.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        // SAFETY: the arguments have the number and the sizes that this kernel takes, and their memory was checked.
        unsafe { simcuda_host_launch(self.kernel as c_int, places.as_mut_ptr(), self.grid, self.block) };
    }
}

/// Every name that the PTX exports as an entry.
fn entries(ptx: &str) -> Vec<String> {
    let after = ptx.split(".visible .entry ").skip(1);
    after.filter_map(|text| text.split(['(', '\n']).next()).map(|name| name.trim().to_owned()).collect()
}

driver! {
    fn cuModuleLoadData(module: *mut usize, image: *const c_char) {
        let mut sim = sim();
        let context = sim.current()?;
        sim.permit_unsafe()?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: PTX is a text that ends in a NUL.
        let ptx = unsafe { CStr::from_ptr(image) }.to_str().map_err(|_| INVALID_IMAGE)?;
        if !ptx.contains(".version") || !ptx.contains(".target") {
            return Err(INVALID_IMAGE);
        }
        let handle = sim.handle();
        sim.modules.insert(handle, Module { context, entries: entries(ptx), alive: true });
        // SAFETY: the caller passes a place for the answer, here and below.
        unsafe { *module = handle };
        Ok(())
    }

    fn cuModuleUnload(module: usize) {
        let mut sim = sim();
        sim.current()?;
        sim.permit_unsafe()?;
        let known = sim.modules.get_mut(&module).filter(|module| module.alive);
        known.map(|module| module.alive = false).ok_or(INVALID_HANDLE)
    }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        let mut sim = sim();
        sim.current()?;
        // SAFETY: the caller passes a name that ends in a NUL.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?;
        let known = sim.modules.get(&module).filter(|module| module.alive).ok_or(INVALID_HANDLE)?;
        if !known.entries.iter().any(|entry| entry == name) {
            return Err(NOT_FOUND);
        }
        let kernel = KERNELS.iter().position(|(kernel, _)| *kernel == name).ok_or(NOT_SUPPORTED)?;
        let handle = sim.handle();
        sim.functions.insert(handle, Function { module, kernel, launched: false });
        unsafe { *function = handle };
        Ok(())
    }

    fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        _shared: c_uint,
        stream: usize,
        parameters: *const *const u8,
        extra: *const c_void,
    ) {
        let mut sim = sim();
        let context = sim.current()?;
        let stream = sim.stream(stream)?;
        let known = *sim.functions.get(&function).ok_or(INVALID_HANDLE)?;
        let module = sim.modules.get(&known.module).filter(|module| module.alive);
        let Some(owner) = module.map(|module| module.context) else {
            sim.misused("a function launched after its module was unloaded".into());
            return Err(INVALID_HANDLE);
        };
        if owner != context {
            sim.misused("a function launched in another context".into());
            return Err(INVALID_CONTEXT);
        }
        if grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 || block_y != 1 || block_z != 1 {
            return Err(INVALID_VALUE);
        }
        if !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        if !known.launched && sim.streams.get(&stream).is_some_and(|stream| stream.capture.is_some()) {
            sim.permit_unsafe().map_err(|_| CAPTURE_UNSUPPORTED)?;
        }
        let (_, sizes) = KERNELS[known.kernel];
        let mut arguments = vec![0u64; sizes.len()];
        for (index, size) in sizes.iter().enumerate() {
            // SAFETY: the caller passes one pointer per argument of the kernel, each to a value of its size.
            unsafe {
                let place = *parameters.add(index);
                std::ptr::copy_nonoverlapping(place, (&raw mut arguments[index]).cast::<u8>(), *size);
            }
        }
        let launch = Launch { kernel: known.kernel, arguments, grid: grid_x, block: block_x };
        sim.enqueue(stream, Work::Kernel(launch.into()), vec![])?;
        if let Some(function) = sim.functions.get_mut(&function) {
            function.launched = true;
        }
        Ok(())
    }
}
