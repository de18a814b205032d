//! What a test does to the simulator: hold and release work, order faults, ask what was called and misused.
//!
//! These functions are no part of a driver; they are found by their names, all of which begin with `simcuda_`.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering;

use crate::entry::{FORKED_CALLS, Fault};
use crate::state::{CHANGED, Mode, sim, wait};
use crate::threads;

fn text<'a>(text: *const c_char) -> &'a str {
    // SAFETY: every control function that takes a text takes one that ends in a NUL.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// Writes as much of `text` as fits, and says how long it is.
fn write(text: &str, place: *mut u8, room: usize) -> usize {
    // SAFETY: the caller passes so much room.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), place, text.len().min(room)) };
    text.len()
}

/// Everything as freshly loaded: no handles, no faults, no holds, one device. Work that is queued is dropped; what runs
/// is waited for.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_reset() {
    let mut sim = sim();
    sim.streams.values_mut().for_each(|stream| stream.queue.clear());
    sim.holds.clear();
    CHANGED.notify_all();
    while sim.streams.values().any(|stream| stream.running) {
        sim = wait(sim);
    }
    *sim = sim.renewed();
    CHANGED.notify_all();
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_set_devices(count: c_int) {
    sim().devices = count;
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_set_version(version: c_int) {
    sim().version = version;
}

/// 0 works, 1 is deinitialised, 2 is a stub.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_set_mode(mode: c_int) {
    sim().mode = match mode {
        1 => Mode::Deinitialized,
        2 => Mode::Stub,
        _ => Mode::Working,
    };
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_set_strict(strict: c_int) {
    sim().strict = strict != 0;
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_guard_pinned(guard: c_int) {
    sim().guard_pinned = guard != 0;
}

/// Holds the classes of work in `mask` on one stream, or on all with 0.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_hold(stream: usize, mask: u32) {
    *sim().holds.entry(stream).or_default() |= mask;
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_release(stream: usize, mask: u32) {
    if let Some(held) = sim().holds.get_mut(&stream) {
        *held &= !mask;
    }
    CHANGED.notify_all();
}

/// Lets so many held operations of a stream pass.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_pass(stream: usize, operations: u32) {
    *sim().passes.entry(stream).or_default() += operations;
    CHANGED.notify_all();
}

/// From here on each operation of this class takes so long on the simulated clock of its stream, whatever it takes here.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_set_cost(class: u32, nanos: u64) {
    sim().costs.insert(class, nanos);
}

/// Waits until no stream runs anything or could.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_settle() {
    let mut sim = sim();
    while !sim.is_settled() {
        sim = wait(sim);
    }
}

/// Operations of a stream that are not done.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_pending(stream: usize) -> u64 {
    sim().streams.get(&stream).map_or(0, |stream| stream.submitted - stream.done)
}

/// The next `times` calls of a function after `skip` more answer with `code`; `u64::MAX` is for ever.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_fault(function: *const c_char, code: u32, skip: u64, times: u64) {
    sim().faults.push(Fault { function: text(function).to_owned(), code, skip, times });
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_heal() {
    let mut sim = sim();
    sim.faults.clear();
    sim.contexts.values_mut().for_each(|context| context.sticky = None);
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_thread() -> u64 {
    threads::number()
}

/// Calls of a function (any, if empty) by a thread (any, if 0).
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_calls(thread: u64, function: *const c_char) -> u64 {
    let function = text(function);
    let sim = sim();
    let meant = sim
        .calls
        .iter()
        .filter(|((by, name), _)| (thread == 0 || *by == thread) && (function.is_empty() || *name == function));
    meant.map(|(_, count)| count).sum()
}

/// Calls made in forked children: this one works there.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_forked_calls() -> u64 {
    FORKED_CALLS.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_log(on: c_int) {
    sim().log = (on != 0).then(Vec::new);
}

/// The calls of one thread since the log was turned on, in order, separated by spaces.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_read_log(thread: u64, place: *mut u8, room: usize) -> usize {
    let sim = sim();
    let calls = sim.log.iter().flatten().filter(|(by, _)| *by == thread).map(|(_, name)| *name);
    write(&calls.collect::<Vec<_>>().join(" "), place, room)
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_read_misuse(place: *mut u8, room: usize) -> usize {
    write(&sim().misuse.join("\n"), place, room)
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_pageable_copies() -> u64 {
    sim().pageable_copies
}

/// What lives: `stream`, `event`, `device`, `pinned`, `module`, `graph`, or `retained` for primary contexts.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_live(kind: *const c_char) -> u64 {
    let sim = sim();
    let count = match text(kind) {
        "stream" => sim.streams.values().filter(|stream| stream.created && stream.alive).count(),
        "event" => sim.events.values().filter(|event| event.alive).count(),
        "device" => sim.memory.values().filter(|memory| memory.alive && !memory.is_host).count(),
        "pinned" => sim.memory.values().filter(|memory| memory.alive && memory.is_host).count(),
        "module" => sim.modules.values().filter(|module| module.alive).count(),
        "graph" => sim.graphs.len(),
        _ => return sim.contexts.values().filter(|c| c.primary).map(|c| u64::from(c.retained)).sum(),
    };
    count as u64
}

/// The contexts that are on this thread's stack.
#[unsafe(no_mangle)]
pub extern "C" fn simcuda_context_depth() -> u64 {
    threads::depth(sim().epoch) as u64
}

#[unsafe(no_mangle)]
pub extern "C" fn simcuda_capture_mode() -> u32 {
    threads::mode(sim().epoch)
}
