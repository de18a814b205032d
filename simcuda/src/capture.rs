//! Stream capture and what breaks it.

use std::collections::HashMap;
use std::ffi::c_uint;

use crate::answers::{
    Answer, CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_ISOLATION, CAPTURE_MERGE, CAPTURE_UNJOINED,
    CAPTURE_UNMATCHED, CAPTURE_UNSUPPORTED, CAPTURE_WRONG_THREAD, ILLEGAL_STATE, INVALID_VALUE,
};
use crate::entry::driver;
use crate::graphs::Graph;
use crate::queue::Work;
use crate::state::{Sim, sim};
use crate::threads::{self, GLOBAL, RELAXED};

#[derive(Default)]
struct Branch {
    length: usize,
    /// How much of it another stream of the capture has waited for.
    joined: Option<usize>,
}

pub(crate) struct Capture {
    pub(crate) context: usize,
    pub(crate) thread: u64,
    pub(crate) mode: u32,
    pub(crate) invalidated: bool,
    origin: usize,
    branches: HashMap<usize, Branch>,
    /// In the order in which it was submitted: a graph is replayed as one chain.
    work: Vec<Work>,
}

impl Capture {
    pub(crate) fn add(&mut self, stream: usize, work: Work) {
        self.branches.entry(stream).or_default().length += 1;
        // An event in a graph is an edge, no work.
        if !matches!(work, Work::Record { .. } | Work::Wait) {
            self.work.push(work);
        }
    }

    pub(crate) fn length_of(&self, stream: usize) -> usize {
        self.branches.get(&stream).map_or(0, |branch| branch.length)
    }
}

impl Sim {
    /// Invalidates the captures that are meant; whether there was one.
    pub(crate) fn break_captures(&mut self, is_meant: impl Fn(usize, &Capture) -> bool) -> bool {
        let mut broken = false;
        for (handle, capture) in &mut self.captures {
            if is_meant(*handle, capture) {
                capture.invalidated = true;
                broken = true;
            }
        }
        broken
    }

    /// The rule for "potentially unsafe" calls: they break a capture of this thread that isn't relaxed, and a global
    /// one of another thread, unless this thread has said otherwise by its own mode.
    pub(crate) fn permit_unsafe(&mut self) -> Answer {
        let mode = threads::mode(self.epoch);
        if mode == RELAXED {
            return Ok(());
        }
        let me = threads::number();
        let broken = self.break_captures(|_, capture| {
            if capture.thread == me { capture.mode != RELAXED } else { mode == GLOBAL && capture.mode == GLOBAL }
        });
        if broken { Err(CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    fn blocking_captures(&self, context: usize) -> Vec<usize> {
        let streams = self.streams.values().filter(|stream| stream.context == context && stream.kind.blocking);
        streams.filter_map(|stream| stream.capture).collect()
    }

    /// Work on the legacy stream would depend on every blocking stream, a capturing one included.
    pub(crate) fn refuse_implicit(&mut self, context: usize) -> Answer {
        let meant = self.blocking_captures(context);
        if self.break_captures(|handle, _| meant.contains(&handle)) { Err(CAPTURE_IMPLICIT) } else { Ok(()) }
    }

    /// What waiting for an event means where a capture is involved; false where none is.
    pub(crate) fn join_capture(&mut self, stream: usize, event: usize) -> Answer<bool> {
        let captured = self.events.get(&event).and_then(|event| event.captured);
        let mine = self.streams.get(&stream).and_then(|stream| stream.capture);
        match (captured, mine) {
            (None, None) => Ok(false),
            (None, Some(capture)) => {
                self.break_captures(|handle, _| handle == capture);
                Err(CAPTURE_ISOLATION)
            }
            (Some((capture, from, length)), mine) => {
                if mine.is_some_and(|mine| mine != capture) {
                    self.break_captures(|handle, _| handle == capture || Some(handle) == mine);
                    return Err(CAPTURE_MERGE);
                }
                let Some(open) = self.captures.get_mut(&capture) else { return Err(CAPTURE_ISOLATION) };
                if open.invalidated {
                    return Err(CAPTURE_INVALIDATED);
                }
                if from != stream
                    && let Some(branch) = open.branches.get_mut(&from)
                {
                    branch.joined = branch.joined.max(Some(length));
                }
                open.add(stream, Work::Wait);
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.capture = Some(capture);
                }
                Ok(true)
            }
        }
    }

    fn end_capture(&mut self, stream: usize) -> Answer<usize> {
        let handle = self.streams.get(&stream).and_then(|stream| stream.capture).ok_or(ILLEGAL_STATE)?;
        let capture = self.captures.get(&handle).ok_or(ILLEGAL_STATE)?;
        if capture.origin != stream {
            return Err(CAPTURE_UNMATCHED);
        }
        if capture.mode != RELAXED && capture.thread != threads::number() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        self.streams.values_mut().filter(|stream| stream.capture == Some(handle)).for_each(|s| s.capture = None);
        let capture = self.captures.remove(&handle).ok_or(ILLEGAL_STATE)?;
        if capture.invalidated {
            return Err(CAPTURE_INVALIDATED);
        }
        let loose = capture
            .branches
            .iter()
            .any(|(branch, state)| *branch != stream && state.joined.is_none_or(|joined| joined < state.length));
        if loose {
            return Err(CAPTURE_UNJOINED);
        }
        let graph = self.handle();
        self.graphs.insert(graph, Graph { work: capture.work, executable: false });
        Ok(graph)
    }
}

driver! {
    fn cuStreamBeginCapture_v2(stream: usize, mode: c_uint) {
        let mut sim = sim();
        let context = sim.current()?;
        let stream = sim.stream(stream)?;
        if mode > RELAXED {
            return Err(INVALID_VALUE);
        }
        let state = sim.streams.get(&stream).ok_or(INVALID_VALUE)?;
        if state.kind.legacy {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if state.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let handle = sim.handle();
        let capture = Capture {
            context,
            thread: threads::number(),
            mode,
            invalidated: false,
            origin: stream,
            branches: HashMap::new(),
            work: Vec::new(),
        };
        sim.captures.insert(handle, capture);
        if let Some(state) = sim.streams.get_mut(&stream) {
            state.capture = Some(handle);
        }
        Ok(())
    }

    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        let mut sim = sim();
        let stream = sim.stream(stream)?;
        let answer = sim.end_capture(stream);
        // SAFETY: the caller passes a place for the answer, here and below.
        unsafe { *graph = *answer.as_ref().unwrap_or(&0) };
        answer.map(|_| ())
    }

    fn cuStreamIsCapturing(stream: usize, status: *mut c_uint) {
        let mut sim = sim();
        let context = sim.current()?;
        let stream = sim.stream(stream)?;
        let state = sim.streams.get(&stream).ok_or(INVALID_VALUE)?;
        if state.kind.legacy && !sim.blocking_captures(context).is_empty() {
            return Err(CAPTURE_IMPLICIT);
        }
        let capture = state.capture.and_then(|capture| sim.captures.get(&capture));
        unsafe { *status = capture.map_or(0, |capture| if capture.invalidated { 2 } else { 1 }) };
        Ok(())
    }
}
