//! Streams: their handles, the special ones, and the calls about them.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use crate::answers::{Answer, CAPTURE_UNSUPPORTED, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::entry::driver;
use crate::queue::{Operation, Work, wait_for, work_off};
use crate::state::{CHANGED, Sim, sim};
use crate::threads;

const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
const NON_BLOCKING: u32 = 1;

#[derive(Clone, Copy, Default)]
pub(crate) struct Kind {
    pub(crate) legacy: bool,
    /// Waits for the legacy stream, and that for it.
    pub(crate) blocking: bool,
    /// Of this thread, where it is a per-thread default stream.
    pub(crate) thread: Option<u64>,
}

pub(crate) struct Kinds {
    pub(crate) legacy: Kind,
}

pub(crate) const STREAM_KINDS: Kinds = Kinds { legacy: Kind { legacy: true, blocking: false, thread: None } };

pub(crate) struct Stream {
    pub(crate) context: usize,
    pub(crate) kind: Kind,
    pub(crate) alive: bool,
    pub(crate) queue: VecDeque<Operation>,
    pub(crate) submitted: u64,
    pub(crate) done: u64,
    /// When all that was submitted is done, in nanoseconds of the simulated clock.
    pub(crate) clock: u64,
    pub(crate) running: bool,
    pub(crate) mid_copy: bool,
    pub(crate) capture: Option<usize>,
    /// Made by `cuStreamCreate`, so that somebody has to destroy it.
    pub(crate) created: bool,
}

impl Stream {
    pub(crate) fn start(sim: &mut Sim, context: usize, kind: Kind) -> usize {
        let handle = sim.handle();
        let stream = Self {
            context,
            kind,
            alive: true,
            queue: VecDeque::new(),
            submitted: 0,
            done: 0,
            clock: 0,
            running: false,
            mid_copy: false,
            capture: None,
            created: false,
        };
        sim.streams.insert(handle, stream);
        std::thread::spawn(move || work_off(handle));
        handle
    }
}

impl Sim {
    /// The stream that a handle means here: 0, 1 and 2 mean one of the current context.
    pub(crate) fn stream(&mut self, handle: usize) -> Answer<usize> {
        let context = self.current()?;
        match handle {
            0 | LEGACY => self.contexts.get(&context).map(|context| context.legacy).ok_or(INVALID_HANDLE),
            PER_THREAD => {
                let kind = Kind { legacy: false, blocking: true, thread: Some(threads::number()) };
                let known = self
                    .streams
                    .iter()
                    .find(|(_, stream)| stream.context == context && stream.kind.thread == kind.thread && stream.alive);
                let known = known.map(|(handle, _)| *handle);
                Ok(known.unwrap_or_else(|| Stream::start(self, context, kind)))
            }
            handle => self.live_stream(handle).map(|()| handle),
        }
    }

    pub(crate) fn live_stream(&mut self, handle: usize) -> Answer {
        match self.streams.get(&handle) {
            Some(stream) if stream.alive => Ok(()),
            Some(_) => {
                self.misused(format!("stream {handle:#x} used after its end"));
                Err(INVALID_HANDLE)
            }
            None => Err(INVALID_HANDLE),
        }
    }

    fn create_stream(&mut self, flags: u32) -> Answer<usize> {
        if flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let context = self.current()?;
        let blocking = flags & NON_BLOCKING == 0;
        let handle = Stream::start(self, context, Kind { blocking, ..Kind::default() });
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.created = true;
        }
        Ok(handle)
    }

    /// A query or synchronisation of a capturing stream breaks its capture.
    fn refuse_capturing(&mut self, stream: usize) -> Answer {
        let capture = self.streams.get(&stream).and_then(|stream| stream.capture);
        if capture.is_some() && self.break_captures(|handle, _| Some(handle) == capture) {
            return Err(CAPTURE_UNSUPPORTED);
        }
        Ok(())
    }
}

driver! {
    fn cuStreamCreate(stream: *mut usize, flags: c_uint) {
        let handle = sim().create_stream(flags)?;
        // SAFETY: the caller passes a place for the answer, here and in every function below.
        unsafe { *stream = handle };
        Ok(())
    }

    fn cuStreamCreateWithPriority(stream: *mut usize, flags: c_uint, _priority: c_int) {
        let handle = sim().create_stream(flags)?;
        unsafe { *stream = handle };
        Ok(())
    }

    fn cuStreamDestroy_v2(stream: usize) {
        let mut sim = sim();
        sim.current()?;
        sim.live_stream(stream)?;
        if let Some(stream) = sim.streams.get_mut(&stream) {
            stream.alive = false;
        }
        CHANGED.notify_all();
        Ok(())
    }

    fn cuStreamGetCtx(stream: usize, context: *mut usize) {
        let mut sim = sim();
        // The special handles mean the current context; of any other the stream itself knows.
        let handle = if stream <= PER_THREAD {
            sim.current()?
        } else {
            sim.live_stream(stream)?;
            sim.streams.get(&stream).map(|stream| stream.context).ok_or(INVALID_HANDLE)?
        };
        unsafe { *context = handle };
        Ok(())
    }

    fn cuStreamQuery(stream: usize) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        sim.permit_unsafe()?;
        sim.refuse_capturing(stream)?;
        let last = sim.streams.get(&stream).map_or(0, |stream| stream.submitted);
        if !sim.is_done((stream, last)) {
            return Err(NOT_READY);
        }
        sim.observe((stream, last));
        Ok(())
    }

    fn cuStreamSynchronize(stream: usize) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        sim.permit_unsafe()?;
        sim.refuse_capturing(stream)?;
        let last = sim.streams.get(&stream).map_or(0, |stream| stream.submitted);
        let mut sim = wait_for(sim, (stream, last));
        sim.observe((stream, last));
        Ok(())
    }

    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        sim.live_event(event)?;
        if sim.join_capture(stream, event)? {
            return Ok(());
        }
        let (after, at) = sim.events.get(&event).map_or((None, 0), |event| (event.recorded, event.at));
        if let Some(stream) = sim.streams.get_mut(&stream).filter(|_| after.is_some()) {
            stream.clock = stream.clock.max(at);
        }
        sim.enqueue(stream, Work::Wait, after.into_iter().collect())?;
        Ok(())
    }

    fn cuLaunchHostFunc(stream: usize, function: unsafe extern "C" fn(*mut c_void), data: usize) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        sim.enqueue(stream, Work::Host { function, data }, vec![])?;
        Ok(())
    }
}
