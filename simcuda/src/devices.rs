//! Initialisation and devices.

use std::ffi::{c_char, c_int, c_uint};

use crate::answers::{INVALID_DEVICE, INVALID_VALUE, NO_DEVICE};
use crate::entry::driver;
use crate::state::{Sim, sim};

const MEMORY_POOLS_SUPPORTED: u32 = 115;
const COMPUTE_MAJOR: u32 = 75;
const COMPUTE_MINOR: u32 = 76;

impl Sim {
    pub(crate) fn check_device(&self, device: c_int) -> Result<(), u32> {
        if (0..self.devices).contains(&device) { Ok(()) } else { Err(INVALID_DEVICE) }
    }
}

driver! {
    fn cuInit(flags: c_uint) {
        let mut sim = sim();
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if sim.devices == 0 {
            return Err(NO_DEVICE);
        }
        sim.initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller passes a place for the answer, here and in every function below.
        unsafe { *version = sim().version };
        Ok(())
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        unsafe { *count = sim().devices };
        Ok(())
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        sim().check_device(ordinal)?;
        unsafe { *device = ordinal };
        Ok(())
    }

    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) {
        sim().check_device(device)?;
        let text = c"simulated device".to_bytes_with_nul();
        if usize::try_from(length).unwrap_or(0) < text.len() {
            return Err(INVALID_VALUE);
        }
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        sim().check_device(device)?;
        unsafe { *bytes = 1 << 34 };
        Ok(())
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) {
        let sim = sim();
        sim.check_device(device)?;
        unsafe {
            *value = match attribute {
                MEMORY_POOLS_SUPPORTED => c_int::from(sim.memory_pools),
                COMPUTE_MAJOR => 9,
                COMPUTE_MINOR => 0,
                _ => 0,
            }
        };
        Ok(())
    }
}
