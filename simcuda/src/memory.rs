//! Device and pinned memory. What is freed is kept, so that use after free is found and doesn't crash.

use std::ffi::{c_int, c_uint, c_void};

use crate::answers::{Answer, INVALID_VALUE, OUT_OF_MEMORY};
use crate::entry::driver;
use crate::pinned;
use crate::queue::{Point, Work};
use crate::state::{Sim, sim};

/// Fresh memory is never zero: whoever forgets to zero it sees one of these.
const DEVICE_POISON: u8 = 0xA5;
const PINNED_POISON: u8 = 0x5A;
const ALIGNMENT: usize = 256;

pub(crate) struct Allocation {
    pub(crate) bytes: usize,
    pub(crate) mapped: usize,
    pub(crate) context: usize,
    pub(crate) is_host: bool,
    pub(crate) alive: bool,
    device_view: usize,
    pub(crate) unobserved: Vec<Point>,
}

impl Sim {
    pub(crate) fn allocate(&mut self, bytes: usize) -> Answer<usize> {
        let context = self.current()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let layout = std::alloc::Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the size is not zero. The memory is never given back.
        let start = unsafe { std::alloc::alloc(layout) };
        if start.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: just allocated with this size.
        unsafe { start.write_bytes(DEVICE_POISON, bytes) };
        self.remember(start as usize, start as usize, bytes, bytes, context, false);
        Ok(start as usize)
    }

    fn allocate_pinned(&mut self, bytes: usize) -> Answer<usize> {
        let context = self.current()?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let mapped = bytes.div_ceil(4096) * 4096;
        let (host, device) = pinned::map(mapped)?;
        // SAFETY: just mapped with this size.
        unsafe { (host as *mut u8).write_bytes(PINNED_POISON, bytes) };
        self.remember(host, device, bytes, mapped, context, true);
        Ok(host)
    }

    fn remember(
        &mut self,
        start: usize,
        device_view: usize,
        bytes: usize,
        mapped: usize,
        context: usize,
        is_host: bool,
    ) {
        let allocation =
            Allocation { bytes, mapped, context, is_host, alive: true, device_view, unobserved: Vec::new() };
        self.memory.insert(start, allocation);
    }

    pub(crate) fn allocation(&self, address: usize) -> Option<(usize, &Allocation)> {
        let (start, memory) = self.memory.range(..=address).next_back()?;
        (address < start + memory.bytes).then_some((*start, memory))
    }

    pub(crate) fn allocation_mut(&mut self, address: usize) -> Option<(usize, &mut Allocation)> {
        let (start, memory) = self.memory.range_mut(..=address).next_back()?;
        (address < start + memory.bytes).then_some((*start, memory))
    }

    /// Whether this range lies in one allocation that is still there.
    pub(crate) fn check_range(&mut self, start: usize, bytes: usize) -> Answer {
        match self.allocation(start) {
            Some((_, memory)) if !memory.alive => {
                self.misused(format!("memory {start:#x} used after it was freed"));
                Err(INVALID_VALUE)
            }
            Some((first, memory)) if start + bytes <= first + memory.bytes => Ok(()),
            Some(_) => {
                self.misused(format!("{bytes} bytes at {start:#x} reach beyond their allocation"));
                Err(INVALID_VALUE)
            }
            None => Err(INVALID_VALUE),
        }
    }

    /// Where a stream's thread finds this address.
    pub(crate) fn device_view(&self, address: usize) -> usize {
        self.allocation(address).map_or(address, |(start, memory)| memory.device_view + (address - start))
    }

    pub(crate) fn free(&mut self, start: usize, is_host: bool) -> Answer {
        self.current()?;
        let known = self.memory.get(&start).filter(|memory| memory.is_host == is_host).map(|memory| memory.alive);
        if known != Some(true) {
            self.misused(format!("memory {start:#x} freed twice, or never allocated"));
            return Err(INVALID_VALUE);
        }
        let in_use = |work: &crate::queue::Operation| {
            work.work.ranges().iter().any(|(address, _)| self.allocation(*address).is_some_and(|(own, _)| own == start))
        };
        if self.streams.values().any(|stream| stream.queue.iter().any(in_use)) {
            self.misused(format!("memory {start:#x} freed while work on it was queued"));
        }
        if let Some(memory) = self.memory.get_mut(&start) {
            memory.alive = false;
        }
        Ok(())
    }
}

const CONTEXT: u32 = 1;
const MEMORY_TYPE: u32 = 2;
const DEVICE_ORDINAL: u32 = 9;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;

driver! {
    fn cuMemAlloc_v2(address: *mut usize, bytes: usize) {
        let mut sim = sim();
        sim.current()?;
        sim.permit_unsafe()?;
        let start = sim.allocate(bytes)?;
        // SAFETY: the caller passes a place for the answer, here and in every function below.
        unsafe { *address = start };
        Ok(())
    }

    fn cuMemFree_v2(address: usize) {
        let mut sim = sim();
        sim.current()?;
        sim.permit_unsafe()?;
        sim.free(address, false)
    }

    fn cuMemAllocAsync(address: *mut usize, bytes: usize, stream: usize) {
        let mut sim = sim();
        sim.stream(stream)?;
        let start = sim.allocate(bytes)?;
        unsafe { *address = start };
        Ok(())
    }

    fn cuMemFreeAsync(address: usize, stream: usize) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        let is_known = sim.memory.get(&address).is_some_and(|memory| memory.alive && !memory.is_host);
        if !is_known {
            sim.misused(format!("memory {address:#x} freed twice, or never allocated"));
            return Err(INVALID_VALUE);
        }
        sim.enqueue(stream, Work::Free { start: address }, vec![])?;
        Ok(())
    }

    fn cuMemHostAlloc(address: *mut usize, bytes: usize, _flags: c_uint) {
        let mut sim = sim();
        sim.current()?;
        sim.permit_unsafe()?;
        let start = sim.allocate_pinned(bytes)?;
        unsafe { *address = start };
        Ok(())
    }

    fn cuMemFreeHost(address: usize) {
        let mut sim = sim();
        sim.current()?;
        sim.permit_unsafe()?;
        sim.free(address, true)
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut usize, host: usize, _flags: c_uint) {
        let mut sim = sim();
        sim.current()?;
        sim.check_range(host, 1)?;
        unsafe { *device = host };
        Ok(())
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        sim().current()?;
        unsafe {
            *free = 1 << 33;
            *total = 1 << 34;
        }
        Ok(())
    }

    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_uint, address: usize) {
        let mut sim = sim();
        sim.current()?;
        let (start, memory) = sim.allocation(address).filter(|(_, memory)| memory.alive).ok_or(INVALID_VALUE)?;
        let device = sim.contexts.get(&memory.context).map_or(0, |context| context.device);
        unsafe {
            match attribute {
                CONTEXT => *value.cast::<usize>() = memory.context,
                MEMORY_TYPE => *value.cast::<c_uint>() = if memory.is_host { 1 } else { 2 },
                DEVICE_ORDINAL => *value.cast::<c_int>() = device,
                RANGE_START => *value.cast::<usize>() = start,
                RANGE_SIZE => *value.cast::<usize>() = memory.bytes,
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(())
    }
}
