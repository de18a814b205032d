//! Events: a point in a stream that can be asked for, waited for, and captured.

use std::ffi::c_uint;

use crate::answers::{Answer, CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, NOT_READY};
use crate::entry::driver;
use crate::queue::{Point, Work, wait_for};
use crate::state::{Sim, sim};

pub(crate) struct Event {
    pub(crate) context: usize,
    pub(crate) alive: bool,
    flags: u32,
    pub(crate) recorded: Option<Point>,
    /// Recorded in this capture, by this stream, after so many of its operations.
    pub(crate) captured: Option<(usize, usize, usize)>,
    /// When the point that was recorded is reached, in nanoseconds of the simulated clock.
    pub(crate) at: u64,
}

impl Sim {
    pub(crate) fn live_event(&mut self, handle: usize) -> Answer {
        match self.events.get(&handle) {
            Some(event) if event.alive => Ok(()),
            Some(_) => {
                self.misused(format!("event {handle:#x} used after its end"));
                Err(INVALID_HANDLE)
            }
            None => Err(INVALID_HANDLE),
        }
    }

    /// Where the event stands; asking about a captured one breaks the capture.
    fn asked(&mut self, handle: usize) -> Answer<Option<Point>> {
        self.current()?;
        self.live_event(handle)?;
        let captured = self.events.get(&handle).and_then(|event| event.captured);
        if let Some((capture, ..)) = captured {
            self.break_captures(|handle, _| handle == capture);
            return Err(CAPTURED_EVENT);
        }
        self.permit_unsafe()?;
        Ok(self.events.get(&handle).and_then(|event| event.recorded))
    }

    /// What lies between two events that have come to pass.
    fn milliseconds(&self, start: usize, end: usize) -> Answer<f32> {
        const DISABLE_TIMING: u32 = 2;
        let at = |handle: usize| {
            let event = self.events.get(&handle).ok_or(INVALID_HANDLE)?;
            let recorded = event.recorded.filter(|_| event.alive && event.flags & DISABLE_TIMING == 0);
            if self.is_done(recorded.ok_or(INVALID_HANDLE)?) { Ok(event.at) } else { Err(NOT_READY) }
        };
        let nanos = i128::from(at(end)?) - i128::from(at(start)?);
        Ok((nanos as f64 / 1e6) as f32)
    }
}

driver! {
    fn cuEventCreate(event: *mut usize, flags: c_uint) {
        let mut sim = sim();
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let context = sim.current()?;
        let handle = sim.handle();
        let new = Event { context, alive: true, flags, recorded: None, captured: None, at: 0 };
        sim.events.insert(handle, new);
        // SAFETY: the caller passes a place for the answer, here and below.
        unsafe { *event = handle };
        Ok(())
    }

    fn cuEventDestroy_v2(event: usize) {
        let mut sim = sim();
        sim.current()?;
        sim.live_event(event)?;
        if let Some(event) = sim.events.get_mut(&event) {
            event.alive = false;
        }
        Ok(())
    }

    fn cuEventRecord(event: usize, stream: usize) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        sim.live_event(event)?;
        let context = sim.streams.get(&stream).map(|stream| stream.context);
        if sim.events.get(&event).map(|event| event.context) != context {
            sim.misused(format!("event {event:#x} recorded on a stream of another context"));
            return Err(INVALID_HANDLE);
        }
        if sim.enqueue(stream, Work::Record { event }, vec![])?.is_none() {
            let capture = sim.streams.get(&stream).and_then(|stream| stream.capture).ok_or(INVALID_HANDLE)?;
            let length = sim.captures.get(&capture).map_or(0, |capture| capture.length_of(stream));
            if let Some(event) = sim.events.get_mut(&event) {
                event.captured = Some((capture, stream, length));
                event.recorded = None;
            }
        }
        Ok(())
    }

    fn cuEventQuery(event: usize) {
        let mut sim = sim();
        let Some(point) = sim.asked(event)? else { return Ok(()) };
        if !sim.is_done(point) {
            return Err(NOT_READY);
        }
        sim.observe(point);
        Ok(())
    }

    fn cuEventSynchronize(event: usize) {
        let mut sim = sim();
        let Some(point) = sim.asked(event)? else { return Ok(()) };
        let mut sim = wait_for(sim, point);
        sim.observe(point);
        Ok(())
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, start: usize, end: usize) {
        let time = sim().milliseconds(start, end)?;
        unsafe { *milliseconds = time };
        Ok(())
    }

    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: usize, end: usize) {
        let time = sim().milliseconds(start, end)?;
        unsafe { *milliseconds = time };
        Ok(())
    }
}
