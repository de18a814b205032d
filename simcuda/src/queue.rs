//! Work that is queued on streams, and the thread of each stream that does it.

use std::sync::{Arc, MutexGuard};

use crate::answers::{Answer, CAPTURE_INVALIDATED, INVALID_CONTEXT, INVALID_HANDLE};
use crate::modules::Launch;
use crate::state::{CHANGED, Sim, sim, wait};

/// A point in a stream: everything up to this number.
pub(crate) type Point = (usize, u64);

/// The classes of work that a test can hold, one bit each.
pub(crate) mod class {
    pub(crate) const DEVICE_COPY: u32 = 1;
    pub(crate) const TO_HOST: u32 = 2;
    pub(crate) const TO_DEVICE: u32 = 4;
    pub(crate) const RECORD: u32 = 8;
    pub(crate) const KERNEL: u32 = 16;
    pub(crate) const WAIT: u32 = 32;
    pub(crate) const FILL: u32 = 64;
    pub(crate) const HOST: u32 = 128;
    /// No class of its own: a copy stops here after its first half.
    pub(crate) const MID_COPY: u32 = 256;
}

#[derive(Clone)]
pub(crate) enum Work {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
        class: u32,
    },
    /// From pageable memory, which was read when the copy was asked for.
    Staged {
        to: usize,
        data: Arc<[u8]>,
    },
    Fill {
        to: usize,
        byte: u8,
        bytes: usize,
    },
    Kernel(Arc<Launch>),
    Host {
        function: unsafe extern "C" fn(*mut std::ffi::c_void),
        data: usize,
    },
    Record {
        event: usize,
    },
    /// Memory given back in the order of the stream.
    Free {
        start: usize,
    },
    Wait,
}

impl Work {
    fn class(&self) -> u32 {
        match self {
            Self::Copy { class, .. } => *class,
            Self::Staged { .. } => class::TO_DEVICE,
            Self::Fill { .. } => class::FILL,
            Self::Kernel(_) => class::KERNEL,
            Self::Host { .. } => class::HOST,
            Self::Record { .. } => class::RECORD,
            Self::Wait => class::WAIT,
            Self::Free { .. } => 0,
        }
    }

    /// The memory it reads or writes.
    pub(crate) fn ranges(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Copy { to, from, bytes, .. } => vec![(*to, *bytes), (*from, *bytes)],
            Self::Staged { to, data } => vec![(*to, data.len())],
            Self::Fill { to, bytes, .. } => vec![(*to, *bytes)],
            Self::Kernel(launch) => launch.ranges(),
            Self::Host { .. } | Self::Record { .. } | Self::Free { .. } | Self::Wait => vec![],
        }
    }
}

pub(crate) struct Operation {
    pub(crate) work: Work,
    /// What must be done before it starts, besides what precedes it on its stream.
    pub(crate) after: Vec<Point>,
}

impl Sim {
    pub(crate) fn is_done(&self, (stream, number): Point) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.done >= number)
    }

    /// Puts work on a stream, or into the graph where the stream is being captured.
    pub(crate) fn enqueue(&mut self, stream: usize, work: Work, mut after: Vec<Point>) -> Answer<Option<Point>> {
        let context = self.current()?;
        let Some(queue) = self.streams.get(&stream) else { return Err(INVALID_HANDLE) };
        if !queue.alive {
            self.misused(format!("work on stream {stream:#x} after its end"));
            return Err(INVALID_HANDLE);
        }
        if queue.context != context {
            self.misused(format!("work on stream {stream:#x} of another context"));
            return Err(INVALID_CONTEXT);
        }
        for (start, bytes) in work.ranges() {
            self.check_range(start, bytes)?;
        }
        let (kind, capture) =
            self.streams.get(&stream).map(|queue| (queue.kind, queue.capture)).ok_or(INVALID_HANDLE)?;
        if let Some(capture) = capture {
            let capture = self.captures.get_mut(&capture).ok_or(CAPTURE_INVALIDATED)?;
            if capture.invalidated {
                return Err(CAPTURE_INVALIDATED);
            }
            capture.add(stream, work);
            return Ok(None);
        }
        if kind.legacy {
            self.refuse_implicit(context)?;
        }
        if self.strict && matches!(work, Work::Copy { .. } | Work::Staged { .. }) {
            self.permit_unsafe()?;
        }
        // The legacy stream and the blocking ones wait for each other.
        let implicit = self.streams.iter().filter(|(_, other)| {
            other.context == context && ((kind.legacy && other.kind.blocking) || (kind.blocking && other.kind.legacy))
        });
        // Each operation's time is told when it is submitted, so that it depends on no thread of ours.
        let mut begins = 0;
        for (other, queue) in implicit {
            begins = begins.max(queue.clock);
            after.extend((queue.done < queue.submitted).then_some((*other, queue.submitted)));
        }
        let cost = self.costs.get(&work.class()).copied().unwrap_or(0);
        if let Work::Copy { to, class: class::TO_HOST, .. } = &work {
            let point = (stream, self.streams.get(&stream).map_or(0, |queue| queue.submitted) + 1);
            self.guard(*to, point);
        }
        let queue = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        queue.submitted += 1;
        queue.clock = queue.clock.max(begins) + cost;
        let (point, clock) = ((stream, queue.submitted), queue.clock);
        if let Work::Record { event } = &work
            && let Some(event) = self.events.get_mut(event)
        {
            event.recorded = Some(point);
            event.captured = None;
            event.at = clock;
        }
        let queue = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        queue.queue.push_back(Operation { work, after });
        CHANGED.notify_all();
        Ok(Some(point))
    }

    fn is_held(&self, stream: usize, class: u32) -> bool {
        let mask = self.holds.get(&0).copied().unwrap_or(0) | self.holds.get(&stream).copied().unwrap_or(0);
        mask & class != 0
    }

    /// Whether the first operation of this stream could start now.
    fn is_runnable(&self, stream: usize) -> bool {
        let Some(first) = self.streams.get(&stream).and_then(|queue| queue.queue.front()) else { return false };
        let passes = self.passes.get(&stream).copied().unwrap_or(0);
        (passes > 0 || !self.is_held(stream, first.work.class()))
            && first.after.iter().all(|point| self.is_done(*point))
    }

    /// Whether nothing runs and nothing could.
    pub(crate) fn is_settled(&self) -> bool {
        self.streams.iter().all(|(handle, stream)| {
            let stopped = stream.mid_copy && self.is_held(*handle, class::MID_COPY);
            (!stream.running || stopped) && (stream.running || !self.is_runnable(*handle))
        })
    }
}

/// Waits until this point is reached.
pub(crate) fn wait_for(mut sim: MutexGuard<'static, Sim>, point: Point) -> MutexGuard<'static, Sim> {
    while !sim.is_done(point) {
        sim = wait(sim);
    }
    sim
}

/// The life of a stream's thread: the queue in order, each operation when its time has come.
pub(crate) fn work_off(stream: usize) {
    let mut sim = sim();
    loop {
        match sim.streams.get(&stream) {
            None => return,
            Some(queue) if !queue.alive && queue.queue.is_empty() => return,
            Some(_) => {}
        }
        if !sim.is_runnable(stream) {
            sim = wait(sim);
            continue;
        }
        let held = {
            let class = sim.streams.get(&stream).and_then(|queue| queue.queue.front()).map(|first| first.work.class());
            class.is_some_and(|class| sim.is_held(stream, class))
        };
        if held && let Some(passes) = sim.passes.get_mut(&stream) {
            *passes -= 1;
        }
        let Some(queue) = sim.streams.get_mut(&stream) else { return };
        let Some(operation) = queue.queue.pop_front() else { continue };
        queue.running = true;
        sim = perform(sim, stream, operation.work);
        if let Some(queue) = sim.streams.get_mut(&stream) {
            queue.running = false;
            queue.done += 1;
        }
        CHANGED.notify_all();
    }
}

fn perform(mut sim: MutexGuard<'static, Sim>, stream: usize, work: Work) -> MutexGuard<'static, Sim> {
    for (start, bytes) in work.ranges() {
        if sim.check_range(start, bytes).is_err() {
            // Freed memory is never handed back, so what the misused copy touches is still there.
            sim.misused(format!("work on stream {stream:#x} ran after its memory {start:#x} was freed"));
        }
    }
    match work {
        Work::Copy { to, from, bytes, .. } => {
            let (to, from) = (sim.device_view(to), sim.device_view(from));
            let half = bytes / 16 * 8;
            drop(sim);
            copy(to, from, half);
            sim = stop_mid_copy(stream);
            drop(sim);
            copy(to + half, from + half, bytes - half);
            self::sim()
        }
        Work::Staged { to, data } => {
            let to = sim.device_view(to);
            drop(sim);
            copy(to, data.as_ptr() as usize, data.len());
            self::sim()
        }
        Work::Fill { to, byte, bytes } => {
            let to = sim.device_view(to);
            drop(sim);
            // SAFETY: the range was checked against its allocation, whose memory is never given back.
            unsafe { std::ptr::write_bytes(to as *mut u8, byte, bytes) };
            self::sim()
        }
        Work::Kernel(launch) => {
            drop(sim);
            launch.run();
            self::sim()
        }
        Work::Host { function, data } => {
            drop(sim);
            // SAFETY: `cuLaunchHostFunc`'s caller vouches for the function and its argument.
            unsafe { function(data as *mut std::ffi::c_void) };
            self::sim()
        }
        Work::Free { start } => {
            if let Some(memory) = sim.memory.get_mut(&start) {
                memory.alive = false;
            }
            sim
        }
        Work::Record { .. } | Work::Wait => sim,
    }
}

fn stop_mid_copy(stream: usize) -> MutexGuard<'static, Sim> {
    let mut sim = sim();
    while sim.is_held(stream, class::MID_COPY) {
        if let Some(queue) = sim.streams.get_mut(&stream) {
            queue.mid_copy = true;
        }
        CHANGED.notify_all();
        sim = wait(sim);
    }
    if let Some(queue) = sim.streams.get_mut(&stream) {
        queue.mid_copy = false;
    }
    sim
}

/// Copies word by word where it can, so that a word is never torn, as on a device.
fn copy(to: usize, from: usize, bytes: usize) {
    use std::sync::atomic::{AtomicU64, Ordering};
    let words = if (to | from).is_multiple_of(8) { bytes / 8 } else { 0 };
    for word in 0..words {
        // SAFETY: both ranges were checked against their allocations, and the addresses are aligned.
        unsafe {
            let value = (*((from + word * 8) as *const AtomicU64)).load(Ordering::Relaxed);
            (*((to + word * 8) as *const AtomicU64)).store(value, Ordering::Relaxed);
        }
    }
    let rest = words * 8;
    // SAFETY: as above.
    unsafe { std::ptr::copy((from + rest) as *const u8, (to + rest) as *mut u8, bytes - rest) };
}
