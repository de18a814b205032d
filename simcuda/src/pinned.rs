//! Pinned memory: two views of the same pages, so that the host's view can be closed while a copy is under way.

use crate::answers::{Answer, OUT_OF_MEMORY};
use crate::queue::Point;
use crate::state::Sim;

/// Maps `bytes` twice; the host's view first, the device's second.
pub(crate) fn map(bytes: usize) -> Answer<(usize, usize)> {
    let length = libc::off_t::try_from(bytes).map_err(|_| OUT_OF_MEMORY)?;
    // SAFETY: an anonymous file of this process is made, sized and mapped; the descriptor is closed after the mapping.
    unsafe {
        let file = libc::memfd_create(c"simcuda".as_ptr(), 0);
        if file < 0 {
            return Err(OUT_OF_MEMORY);
        }
        let mut views = [libc::MAP_FAILED; 2];
        if libc::ftruncate(file, length) == 0 {
            for view in &mut views {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                *view = libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0);
            }
        }
        libc::close(file);
        if views.contains(&libc::MAP_FAILED) {
            return Err(OUT_OF_MEMORY);
        }
        Ok((views[0] as usize, views[1] as usize))
    }
}

fn protect(start: usize, bytes: usize, access: i32) {
    // SAFETY: the range is one of our own mappings, which are never unmapped.
    unsafe { libc::mprotect(start as *mut libc::c_void, bytes, access) };
}

impl Sim {
    /// A copy to pinned memory was asked for: nobody may look at it before its end has been asked for too.
    pub(crate) fn guard(&mut self, to: usize, point: Point) {
        if !self.guard_pinned {
            return;
        }
        if let Some((start, memory)) = self.allocation_mut(to)
            && memory.is_host
        {
            memory.unobserved.push(point);
            protect(start, memory.mapped, libc::PROT_NONE);
        }
    }

    /// Somebody has learnt that this point is reached: what landed before it may be read.
    pub(crate) fn observe(&mut self, (stream, number): Point) {
        for (start, memory) in &mut self.memory {
            if memory.unobserved.is_empty() {
                continue;
            }
            memory.unobserved.retain(|(other, landed)| *other != stream || *landed > number);
            if memory.unobserved.is_empty() {
                protect(*start, memory.mapped, libc::PROT_READ | libc::PROT_WRITE);
            }
        }
    }
}
