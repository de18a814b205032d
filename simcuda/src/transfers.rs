//! Copies and fills, asynchronous and not.

use std::ffi::c_uchar;
use std::sync::Arc;

use crate::answers::{Answer, INVALID_VALUE};
use crate::entry::driver;
use crate::queue::{Work, class, wait_for};
use crate::state::sim;

/// Whether this is memory that the driver knows; freed memory counts, and is refused where it is used.
fn is_known(address: usize) -> bool {
    sim().allocation(address).is_some()
}

fn submit(stream: usize, work: Work) -> Answer {
    let mut sim = sim();
    let stream = sim.stream(stream)?;
    sim.enqueue(stream, work, vec![]).map(|_| ())
}

/// Submits and waits: what a synchronous copy does, and a copy to pageable memory whatever it is called.
fn submit_and_wait(stream: usize, work: Work) -> Answer {
    let mut sim = sim();
    let stream = sim.stream(stream)?;
    sim.permit_unsafe()?;
    if let Some(point) = sim.enqueue(stream, work, vec![])? {
        let mut sim = wait_for(sim, point);
        sim.observe(point);
    }
    Ok(())
}

/// To host memory that the driver doesn't know: the caller waits, whatever the function is called.
fn to_pageable(to: usize, from: usize, bytes: usize, stream: usize) -> Answer {
    let mut sim = sim();
    sim.pageable_copies += 1;
    let stream = sim.stream(stream)?;
    sim.permit_unsafe()?;
    sim.check_range(from, bytes)?;
    let Some(point) = sim.enqueue(stream, Work::Wait, vec![])? else { return Err(INVALID_VALUE) };
    drop(wait_for(sim, point));
    // SAFETY: the source was checked, and the caller vouches for as many bytes at the destination.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
    Ok(())
}

fn from_host(to: usize, from: usize, bytes: usize) -> Work {
    if is_known(from) {
        return Work::Copy { to, from, bytes, class: class::TO_DEVICE };
    }
    // SAFETY: the caller vouches for so many bytes at the source.
    let data: Arc<[u8]> = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.into();
    Work::Staged { to, data }
}

driver! {
    fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) {
        if bytes == 0 {
            return Ok(());
        }
        if is_known(to) {
            return submit(stream, Work::Copy { to, from, bytes, class: class::TO_HOST });
        }
        to_pageable(to, from, bytes, stream)
    }

    fn cuMemcpyDtoH_v2(to: usize, from: usize, bytes: usize) {
        if is_known(to) {
            return submit_and_wait(0, Work::Copy { to, from, bytes, class: class::TO_HOST });
        }
        to_pageable(to, from, bytes, 0)
    }

    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) {
        if bytes == 0 { Ok(()) } else { submit(stream, from_host(to, from, bytes)) }
    }

    fn cuMemcpyHtoD_v2(to: usize, from: usize, bytes: usize) {
        submit_and_wait(0, from_host(to, from, bytes))
    }

    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: usize) {
        submit(stream, Work::Copy { to, from, bytes, class: class::DEVICE_COPY })
    }

    fn cuMemcpyDtoD_v2(to: usize, from: usize, bytes: usize) {
        submit_and_wait(0, Work::Copy { to, from, bytes, class: class::DEVICE_COPY })
    }

    fn cuMemsetD8Async(to: usize, byte: c_uchar, bytes: usize, stream: usize) {
        submit(stream, Work::Fill { to, byte, bytes })
    }

    fn cuMemsetD8_v2(to: usize, byte: c_uchar, bytes: usize) {
        submit_and_wait(0, Work::Fill { to, byte, bytes })
    }
}
