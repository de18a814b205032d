//! The source for counters in device memory.

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::thread::ThreadId;

use super::driver::{Address, Code, Handle, INVALID_VALUE};
use super::kit::Kit;
use super::raw::{Context, PER_THREAD, RawParts, check_block, refuse_capturing};
use super::{CudaError, Words, pool};
use crate::source::{Busy, CounterSource, Counters, Dead, Failed, GpuTimes, Layout, Mark, Snapshot, SourceError};

/// Counters in device memory that an engine updates on a stream of its own.
///
/// A snapshot is ordered after all work that the stream has been given, all its words belong to one instant of that
/// stream, and it is read only after its event has said that it landed. See the [module](super) for the calls.
pub struct CudaSource {
    context: Context,
    stream: Handle,
    /// Where the stream is a per-thread one: the thread whose it is.
    thread: Option<ThreadId>,
    block: Address,
    words: Words,
    landed: Box<[i64]>,
    times_steps: bool,
    gpu_times: Option<GpuTimes>,
    /// Always there until the drop takes it.
    kit: Option<Kit>,
}

// SAFETY: the handles are names that the driver takes on any thread; the per-thread stream, which is another one
// elsewhere, is used only after a look at the thread.
unsafe impl Send for CudaSource {}

impl fmt::Debug for CudaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaSource")
            .field("block", &format_args!("{:#x}", self.block))
            .field("stream", &self.stream)
            .field("thread", &self.thread)
            .field("words", &self.words)
            .finish_non_exhaustive()
    }
}

impl CudaSource {
    /// A source over a block that is updated on a stream with a handle of its own, or on the legacy default stream.
    ///
    /// Everything that can be checked is checked here, and everything that is needed later is made here. The calling
    /// thread's current context and capture mode are left as they were.
    ///
    /// # Safety
    ///
    /// - The block holds `i64` words and stays allocated until `keep_alive` has been dropped; without one, until
    ///   [`release_unused`](super::release_unused) has returned 0 after this source was dropped.
    /// - The stream is a handle of the context and outlives the source, and so does a context that is not primary.
    /// - All updates of the block are enqueued on this stream, those of a step before its span is exited (closed, for
    ///   futures). Where updates of later steps may be enqueued by then, drafts and draft tokens are among the words.
    /// - No other thread begins a capture of this stream while the source takes a snapshot.
    ///
    /// # Errors
    ///
    /// Where there is no driver, or where the parts are not what they have to be.
    pub unsafe fn from_raw_parts(
        raw: RawParts,
        words: Words,
        keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, CudaError> {
        if raw.stream.addr() == PER_THREAD {
            return Err(CudaError::PerThreadStream);
        }
        // SAFETY: the caller vouches for the parts.
        unsafe { Self::make(raw, words, None, keep_alive) }
    }

    /// A source over a block that is updated on the per-thread default stream of the calling thread.
    ///
    /// That stream is touched on this thread and on no other: a snapshot asked for elsewhere is skipped as
    /// `wrong_thread`, a flush from elsewhere included. The stream among the parts is not looked at.
    ///
    /// # Safety
    ///
    /// As [`from_raw_parts`](Self::from_raw_parts); the stream is the calling thread's.
    ///
    /// # Errors
    ///
    /// As [`from_raw_parts`](Self::from_raw_parts).
    pub unsafe fn from_raw_parts_per_thread(
        raw: RawParts,
        words: Words,
        keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, CudaError> {
        let raw = RawParts { stream: ptr::without_provenance_mut(PER_THREAD), ..raw };
        // SAFETY: the caller vouches for the parts.
        unsafe { Self::make(raw, words, Some(std::thread::current().id()), keep_alive) }
    }

    /// # Safety
    ///
    /// As the two above.
    unsafe fn make(
        raw: RawParts,
        words: Words,
        thread: Option<ThreadId>,
        keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, CudaError> {
        if !words.fit(raw.words) {
            return Err(CudaError::Invalid("a word of the layout lies beyond the block of counters"));
        }
        // SAFETY: the caller vouches for stream and context.
        let context = unsafe { Context::find(raw.stream, raw.context, raw.ordinal) }?;
        let inside = context.enter()?;
        check_block(context.driver, &raw, &inside)?;
        // SAFETY: the stream belongs to the context, which is in place.
        unsafe { refuse_capturing(context.driver, raw.stream, &inside) }?;
        let mut kit = match pool::take(&context, raw.words, &inside) {
            Some(kit) => kit,
            None => Kit::make(&context, raw.words, &inside)?,
        };
        kit.keep_alive = keep_alive;
        if let Err(error) = inside.leave() {
            pool::give_back_kit(kit);
            return Err(error);
        }
        let landed = vec![0; raw.words].into();
        let (stream, block) = (raw.stream, raw.device_ptr);
        let (times_steps, gpu_times, kit) = (false, None, Some(kit));
        Ok(Self { context, stream, thread, block, words, landed, times_steps, gpu_times, kit })
    }

    /// Asks for the time that sampled steps take on the device: see the [module](super). With a driver that can't tell
    /// it there is none.
    ///
    /// # Errors
    ///
    /// Where the driver refuses to make the events.
    pub fn with_gpu_time(mut self) -> Result<Self, CudaError> {
        if self.context.driver.is_forked() {
            return Err(CudaError::Forked);
        }
        if let Some(kit) = &mut self.kit {
            let inside = self.context.enter()?;
            self.times_steps = kit.make_timing(&inside)?;
            inside.leave()?;
        }
        Ok(self)
    }

    /// Whether the stream's handle means the engine's stream on this thread.
    fn is_own_thread(&self) -> bool {
        self.thread.is_none_or(|thread| thread == std::thread::current().id())
    }
}

impl CounterSource for CudaSource {
    fn layout(&self) -> Layout {
        self.words.layout()
    }

    fn start(&mut self) -> Result<(), SourceError> {
        if !self.is_own_thread() {
            return Err(SourceError::Busy(Busy::WrongThread));
        }
        let (stream, block, words) = (self.stream, self.block, self.landed.len());
        if self.context.driver.is_forked() {
            return Err(SourceError::Dead(Dead::NoDriver));
        }
        let kit = self.kit.as_mut().ok_or(SourceError::Dead(Dead::NoDriver))?;
        if kit.is_in_flight() {
            return Err(SourceError::Busy(Busy::Contended));
        }
        let inside = kit.context.enter().map_err(|error| meaning(&error))?;
        // SAFETY: whoever made the source vouches for the stream and the block; the kit has room for its words.
        let started = unsafe { kit.start(stream, block, words, &inside) };
        let left = inside.leave();
        started.and(left).map_err(|error| {
            kit.give_up();
            meaning(&error)
        })
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        if self.context.driver.is_forked() {
            return Err(SourceError::Dead(Dead::NoDriver));
        }
        let kit = self.kit.as_mut().ok_or(SourceError::Dead(Dead::NoDriver))?;
        if !kit.is_in_flight() {
            return Err(SourceError::Busy(Busy::Contended));
        }
        let asked = kit.context.enter().map_err(|error| meaning(&error)).and_then(|inside| {
            let asked = kit.query(&inside).map_err(meaning_of);
            if asked == Ok(true) {
                self.gpu_times = kit.gpu_times(&inside);
            }
            let left = inside.leave().map_err(|error| meaning(&error));
            asked.and_then(|landed| left.map(|()| landed))
        });
        match asked {
            Ok(false) => Ok(Snapshot::Pending),
            Ok(true) => {
                kit.read(&mut self.landed);
                // A count below zero is none: the sample is refused, and the next one may be right again.
                let read = self.words.read(&self.landed, counters);
                read.map(|()| Snapshot::Landed).ok_or(SourceError::Failed(Failed::Driver(INVALID_VALUE)))
            }
            Err(error) => {
                kit.give_up();
                Err(error)
            }
        }
    }

    fn times_steps(&self) -> bool {
        self.times_steps
    }

    fn mark(&mut self, mark: Mark) -> Result<(), SourceError> {
        if !self.is_own_thread() {
            return Err(SourceError::Busy(Busy::WrongThread));
        }
        if self.context.driver.is_forked() {
            return Err(SourceError::Dead(Dead::NoDriver));
        }
        let kit = self.kit.as_mut().ok_or(SourceError::Dead(Dead::NoDriver))?;
        let inside = self.context.enter().map_err(|error| meaning(&error))?;
        // SAFETY: whoever made the source vouches for the stream.
        let marked = unsafe { kit.mark(mark, self.stream, &inside) };
        marked.and(inside.leave()).map_err(|error| meaning(&error))
    }

    fn gpu_times(&mut self) -> Option<GpuTimes> {
        self.gpu_times.take()
    }
}

impl Drop for CudaSource {
    fn drop(&mut self) {
        let Some(mut kit) = self.kit.take() else { return };
        if self.context.driver.is_forked() {
            std::mem::forget(kit);
            return;
        }
        // What the copy reads may go as soon as no copy is under way, which one query tells. Its owner's drop may bind
        // a context: inside of the brackets that changes nothing.
        let is_own_thread = self.is_own_thread();
        if let Ok(inside) = kit.context.clone().enter() {
            if is_own_thread {
                // SAFETY: whoever made the source vouches that the stream outlives it.
                unsafe { kit.tie(self.stream, &inside) };
            }
            if kit.settle(&inside) {
                kit.keep_alive = None;
            }
        }
        pool::give_back_kit(kit);
    }
}

fn meaning(error: &CudaError) -> SourceError {
    match *error {
        CudaError::Capturing => SourceError::Busy(Busy::Capturing),
        CudaError::Driver(_, code) => meaning_of(code),
        _ => SourceError::Dead(Dead::NoDriver),
    }
}

/// What a code of the driver means for the source: whether a later call can succeed.
fn meaning_of(code: Code) -> SourceError {
    match code {
        // Not initialised, being torn down, a stub.
        3 | 4 | 34 => SourceError::Dead(Dead::NoDriver),
        // Errors that stay with the context, or take the device away.
        46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 => SourceError::Dead(Dead::DeviceLost),
        code => SourceError::Failed(Failed::Driver(code)),
    }
}
