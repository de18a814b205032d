//! What one source needs of the driver: a stream, two events, a block on the device and a pinned one.

use std::any::Any;
use std::ptr;
use std::sync::Arc;

use super::CudaError;
use super::driver::{Address, Code, Handle, NOT_READY, SUCCESS, check};
use super::guard::Guard;
use super::raw::{Context, refuse_capturing};
use super::timing::{Recorded, Timing};
use crate::marks::{GpuTimes, Mark};

const NON_BLOCKING: u32 = 1;
/// BLOCKING_SYNC and DISABLE_TIMING: nobody spins on them, and they measure nothing.
const EVENT_FLAGS: u32 = 3;
/// Kits are shared by sources of different sizes, so small ones are made as large as most need.
const USUAL_WORDS: usize = 64;

/// Where the copy of a kit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// `done` has been recorded behind a copy.
    InFlight,
    /// A start or a query failed half-way: a copy may be under way on our stream without an event behind it. Another
    /// start is safe, since it queues behind that copy; freeing is not.
    Unsettled,
    /// The engine's stream copies into the snapshot, and ours does not wait for it: only another start on that same
    /// stream makes the kit whole again.
    Loose,
}

pub(super) struct Kit {
    pub(super) context: Context,
    stream: Handle,
    /// The engine's stream has made the snapshot.
    produced: Handle,
    /// The snapshot is in pinned memory.
    done: Handle,
    snapshot: Address,
    pinned: *mut i64,
    pub(super) words: usize,
    state: State,
    /// Made for the first source that asks for them.
    timing: Option<Timing>,
    /// The marks made since the last start, and those before it.
    marked: Recorded,
    copied: Recorded,
    /// What a copy in flight reads from, held until it has landed.
    pub(super) keep_alive: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the handles are names that the driver takes on any thread, and the pinned block belongs to this kit alone.
unsafe impl Send for Kit {}

impl Kit {
    pub(super) fn make(context: &Context, words: usize, inside: &Guard) -> Result<Self, CudaError> {
        let mut kit = Self {
            context: context.clone(),
            stream: ptr::null_mut(),
            produced: ptr::null_mut(),
            done: ptr::null_mut(),
            snapshot: 0,
            pinned: ptr::null_mut(),
            words: words.max(USUAL_WORDS),
            state: State::Idle,
            timing: None,
            marked: Recorded::default(),
            copied: Recorded::default(),
            keep_alive: None,
        };
        match kit.fill() {
            Ok(()) => Ok(kit),
            Err(error) => {
                kit.destroy(inside);
                Err(error)
            }
        }
    }

    fn bytes(&self) -> usize {
        self.words.saturating_mul(size_of::<i64>())
    }

    fn fill(&mut self) -> Result<(), CudaError> {
        let driver = self.context.driver;
        let bytes = self.bytes();
        let mut pinned = ptr::null_mut();
        // SAFETY: the pointers are to fields and a local of the types that the functions fill in.
        unsafe {
            check("cuStreamCreate", (driver.stream_create)(&raw mut self.stream, NON_BLOCKING))?;
            check("cuEventCreate", (driver.event_create)(&raw mut self.produced, EVENT_FLAGS))?;
            check("cuEventCreate", (driver.event_create)(&raw mut self.done, EVENT_FLAGS))?;
            check("cuMemAlloc", (driver.alloc)(&raw mut self.snapshot, bytes))?;
            check("cuMemHostAlloc", (driver.alloc_host)(&raw mut pinned, bytes, 0))?;
        }
        self.pinned = pinned.cast();
        Ok(())
    }

    /// Starts a copy of a block, behind all work that its stream has been given so far.
    ///
    /// # Safety
    ///
    /// The stream is a living handle of this kit's context, the block has so many words and stays while `keep_alive` is
    /// held, and `words` is at most this kit's.
    pub(super) unsafe fn start(
        &mut self,
        engine: Handle,
        block: Address,
        words: usize,
        inside: &Guard,
    ) -> Result<(), CudaError> {
        self.copied = std::mem::take(&mut self.marked);
        let driver = self.context.driver;
        let bytes = words.saturating_mul(size_of::<i64>()).min(self.bytes());
        // SAFETY: the caller vouches for the stream and the block; all else is this kit's own and lives with it. The
        // snapshot is overwritten only here, and a copy that still reads it is on our stream: what it delivers is
        // delivered anew by the copy below before `done` says so.
        unsafe {
            refuse_capturing(driver, engine, inside)?;
            check("cuMemcpyDtoDAsync", (driver.copy_on_device)(self.snapshot, block, bytes, engine))?;
            self.state = State::Loose;
            check("cuEventRecord", (driver.event_record)(self.produced, engine))?;
            check("cuStreamWaitEvent", (driver.stream_wait)(self.stream, self.produced, 0))?;
            self.state = State::Unsettled;
            check("cuMemcpyDtoHAsync", (driver.copy_to_host)(self.pinned.cast(), self.snapshot, bytes, self.stream))?;
            check("cuEventRecord", (driver.event_record)(self.done, self.stream))?;
        }
        self.state = State::InFlight;
        Ok(())
    }

    /// Makes what it takes to time steps; false where the driver can't.
    pub(super) fn make_timing(&mut self, inside: &Guard) -> Result<bool, CudaError> {
        if self.timing.is_none() {
            self.timing = Timing::make(self.context.driver, inside)?;
        }
        Ok(self.timing.is_some())
    }

    /// Sets a mark behind all work that the engine's stream has been given so far.
    ///
    /// # Safety
    ///
    /// The stream is a living handle of this kit's context.
    pub(super) unsafe fn mark(&mut self, mark: Mark, engine: Handle, inside: &Guard) -> Result<(), CudaError> {
        self.marked.prepare(mark);
        let Some(timing) = &self.timing else { return Ok(()) };
        // SAFETY: the caller vouches for the stream, and it is not being captured.
        unsafe {
            refuse_capturing(self.context.driver, engine, inside)?;
            timing.record(mark, engine, inside)?;
        }
        self.marked.record(mark);
        Ok(())
    }

    /// What the device took between the marks before the copy that has landed.
    pub(super) fn gpu_times(&self, inside: &Guard) -> Option<GpuTimes> {
        self.timing.as_ref()?.read(self.copied, inside)
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.state == State::InFlight
    }

    /// Whether the copy in flight has landed; one query.
    pub(super) fn query(&mut self, _inside: &Guard) -> Result<bool, Code> {
        // SAFETY: the event is this kit's own and was recorded by the start.
        match unsafe { (self.context.driver.event_query)(self.done) } {
            SUCCESS => {
                self.state = State::Idle;
                Ok(true)
            }
            NOT_READY => Ok(false),
            code => {
                self.state = State::Unsettled;
                Err(code)
            }
        }
    }

    /// Nobody will ask for the copy in flight any more.
    pub(super) fn give_up(&mut self) {
        if self.state == State::InFlight {
            self.state = State::Unsettled;
        }
    }

    /// Reads what landed. Only after a query that said so, and before the next start.
    pub(super) fn read(&self, into: &mut [i64]) {
        for (index, word) in into.iter_mut().enumerate().take(self.words) {
            // SAFETY: the block has so many words and no copy writes to it now. Volatile, since what wrote it is
            // nothing that the compiler knows of.
            *word = unsafe { self.pinned.add(index).read_volatile() };
        }
    }

    /// Makes our stream wait for whatever the engine's still copies, where a failure left that undone.
    ///
    /// # Safety
    ///
    /// The stream is the living handle that the last start was given.
    pub(super) unsafe fn tie(&mut self, engine: Handle, inside: &Guard) {
        let driver = self.context.driver;
        // SAFETY: the caller vouches for the stream; the events and our stream are this kit's own.
        unsafe {
            if self.state == State::Loose
                && refuse_capturing(driver, engine, inside).is_ok()
                && (driver.event_record)(self.produced, engine) == SUCCESS
                && (driver.stream_wait)(self.stream, self.produced, 0) == SUCCESS
            {
                self.state = State::Unsettled;
            }
        }
    }

    /// Whether no copy can be under way any more, so that it may be used by another source, or freed.
    pub(super) fn settle(&mut self, inside: &Guard) -> bool {
        if self.state == State::Loose {
            return false;
        }
        if self.state == State::Unsettled {
            // SAFETY: event and stream are this kit's own. Recorded now, the event is behind whatever was started.
            if unsafe { (self.context.driver.event_record)(self.done, self.stream) } != SUCCESS {
                return false;
            }
            self.state = State::InFlight;
        }
        self.state == State::Idle || self.query(inside) == Ok(true)
    }

    /// Gives everything back to the driver. Only for a kit that is settled.
    pub(super) fn destroy(self, inside: &Guard) {
        let driver = self.context.driver;
        if let Some(timing) = self.timing {
            timing.destroy(inside);
        }
        // SAFETY: each is this kit's own and not used again. An error leaves nothing to do: the driver is going away,
        // or the handle is gone already.
        unsafe {
            if !self.pinned.is_null() {
                (driver.free_host)(self.pinned.cast());
            }
            if self.snapshot != 0 {
                (driver.free)(self.snapshot);
            }
            for event in [self.done, self.produced] {
                if !event.is_null() {
                    (driver.event_destroy)(event);
                }
            }
            if !self.stream.is_null() {
                (driver.stream_destroy)(self.stream);
            }
        }
    }
}
