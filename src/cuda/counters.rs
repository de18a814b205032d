//! Counters that we own on the device, for engines that have none: one launch counts one step.

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::thread::ThreadId;

use super::block::Block;
use super::driver::{Address, Handle, check};
use super::guard::Guard;
use super::kernel::{Form, Kernels, NOWHERE, place};
use super::raw::{Context, PER_THREAD, RawParts, refuse_capturing};
use super::{CudaError, CudaSource, Words, pool};

/// Token ids in device memory, by their address and width.
#[derive(Clone, Copy, Debug)]
pub enum Tokens {
    /// 32-bit ids.
    I32(u64),
    /// 64-bit ids.
    I64(u64),
}

impl Tokens {
    fn parts(self) -> (Address, c_int) {
        match self {
            Self::I32(address) => (address, 4),
            Self::I64(address) => (address, 8),
        }
    }
}

/// A verified batch as a rejection sampler has it.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    /// `[batch, k]` bytes: not 0 where the drafted token was accepted, each judged by itself.
    pub accepted: u64,
    /// `[batch, k + 1]` ids of the tokens put out, -1 where there is none.
    pub output: Tokens,
    /// `[batch]` 32-bit numbers of drafted tokens, or 0 where every sequence drafted `k`. A sequence with none is no
    /// draft: rows that only pad a captured graph have none.
    pub drafted: u64,
    /// Sequences.
    pub batch: u32,
    /// Tokens drafted per sequence, at most.
    pub k: u32,
}

/// A verified batch as its sampler counts it: three `[batch]` arrays of 32-bit numbers.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Drafted tokens of each sequence that were verified; 0 is no draft.
    pub drafted: u64,
    /// The accepted prefix of each sequence.
    pub accepted: u64,
    /// Tokens emitted by each sequence, the target model's own included.
    pub emitted: u64,
    /// Sequences.
    pub batch: u32,
}

/// A block of counters on the device, and the kernels that count into it on the engine's stream.
///
/// Each `count` call is one asynchronous launch that adds a whole step: drafts, draft tokens, accepted prefix, emitted
/// tokens, and both per position. A sample therefore holds each step whole or not at all, also where the engine runs
/// several steps ahead of what it closes. Hand [`source`](Self::source) to `attach`; the layer then needs no count on
/// the span but `num_spec_tokens`.
///
/// # In a graph
///
/// A launch can be captured and replayed: everything is loaded when the counters are made, so nothing is left to be
/// loaded inside a capture. The graph keeps the addresses, `batch` and `k` of the captured call, and the address of
/// this block; the values in the arrays are read at each replay. So the arrays and these counters have to outlive the
/// graph's last replay, and a padded batch says by `drafted` which rows are real.
///
/// # Raw mask
///
/// Word [`RAW_MASK_WORD`](Self::RAW_MASK_WORD) of the block sums the mask as it is, accepted tokens behind the first
/// rejection included: the number that vLLM's first collector gave as accepted. It is there to be compared, and not
/// exported.
pub struct DeviceCounters {
    context: Context,
    stream: Handle,
    thread: Option<ThreadId>,
    ordinal: c_int,
    positions: usize,
    block: Arc<Owned>,
    kernels: Kernels,
}

/// The block and what the engine wants to live as long; a source holds it too.
struct Owned {
    block: Block,
    _keep_alive: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the handles are names that the driver takes on any thread; the per-thread stream is used only after a look at
// the thread.
unsafe impl Send for DeviceCounters {}
// SAFETY: as above. Launches from several threads are ordered by the stream, and the words are added to atomically.
unsafe impl Sync for DeviceCounters {}

impl fmt::Debug for DeviceCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCounters")
            .field("block", &format_args!("{:#x}", self.block.block.address()))
            .field("positions", &self.positions)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

const SINGLE_WORDS: usize = 5;
/// No engine drafts more; the words of a block stay few.
const MOST_POSITIONS: usize = 1024;

impl DeviceCounters {
    /// Which word of the block sums the raw mask.
    pub const RAW_MASK_WORD: usize = 4;

    /// Zeroed counters on a stream with a handle of its own, or on the legacy default stream. `positions` is the
    /// largest number of tokens that a sequence drafts; what lies beyond is counted in the sums only.
    ///
    /// A null `context` means the stream's, else the current one, else the primary context of device `ordinal`.
    ///
    /// # Safety
    ///
    /// The stream is a living handle of the context; both live while `keep_alive` is held, and without one as long as
    /// the counters and every source of theirs.
    ///
    /// # Errors
    ///
    /// Where there is no driver, where the stream is being captured, or where the driver refuses.
    pub unsafe fn new(
        stream: *mut c_void,
        context: *mut c_void,
        ordinal: i32,
        positions: usize,
        keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, CudaError> {
        if stream.addr() == PER_THREAD {
            return Err(CudaError::PerThreadStream);
        }
        // SAFETY: the caller vouches for the handles.
        unsafe { Self::make(stream, None, context, ordinal, positions, keep_alive) }
    }

    /// Zeroed counters on the per-thread default stream of the calling thread: counted and sampled on this thread only.
    ///
    /// # Safety
    ///
    /// As [`new`](Self::new), of the context.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub unsafe fn new_per_thread(
        context: *mut c_void,
        ordinal: i32,
        positions: usize,
        keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, CudaError> {
        let stream = ptr::without_provenance_mut(PER_THREAD);
        let thread = Some(std::thread::current().id());
        // SAFETY: the caller vouches for the context.
        unsafe { Self::make(stream, thread, context, ordinal, positions, keep_alive) }
    }

    /// # Safety
    ///
    /// As the two above.
    unsafe fn make(
        stream: Handle,
        thread: Option<ThreadId>,
        context: Handle,
        ordinal: c_int,
        positions: usize,
        keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Self, CudaError> {
        if positions > MOST_POSITIONS {
            return Err(CudaError::Invalid("more positions than the 1024 that a block of counters may have"));
        }
        // SAFETY: the caller vouches for the handles.
        let context = unsafe { Context::find(stream, context, ordinal) }?;
        let driver = context.driver;
        let inside = context.enter()?;
        // SAFETY: the stream belongs to the context, which is in place.
        unsafe { refuse_capturing(driver, stream, &inside) }?;
        pool::free_blocks(&context, &inside);
        let (module, kernels) = Kernels::load(driver, &inside)?;
        let bytes = words(positions).saturating_mul(size_of::<i64>());
        let block = Block::make(&context, stream, thread, module, bytes, &inside)?;
        let address = block.address();
        let owned = Owned { block, _keep_alive: keep_alive };
        let counters =
            Self { context: context.clone(), stream, thread, ordinal, positions, block: Arc::new(owned), kernels };
        // SAFETY: the block has so many bytes, and what follows on this stream finds it zeroed.
        check("cuMemsetD8Async", unsafe { (driver.fill)(address, 0, bytes, stream) })?;
        counters.load_functions()?;
        inside.leave()?;
        Ok(counters)
    }

    /// Launches each kernel once on nothing: the driver loads a function at its first launch, which a capture forbids.
    fn load_functions(&self) -> Result<(), CudaError> {
        for form in [Form::Mask, Form::Tokens] {
            // SAFETY: with no rows the kernel reads none of its arrays.
            unsafe { self.launch_rows(form, (NOWHERE, NOWHERE), 8, NOWHERE, 0, 0) }?;
        }
        // SAFETY: as above.
        unsafe { self.launch_lengths(Lengths { drafted: 0, accepted: 0, emitted: 0, batch: 0 }) }
    }

    /// A source over these counters, for `attach`.
    ///
    /// # Errors
    ///
    /// As [`CudaSource::from_raw_parts`]; [`CudaError::WrongThread`] for a per-thread stream of another thread.
    pub fn source(&self) -> Result<CudaSource, CudaError> {
        self.check_thread()?;
        let raw = RawParts {
            device_ptr: self.device_ptr(),
            words: words(self.positions),
            stream: self.stream,
            context: self.context.handle,
            ordinal: self.ordinal,
        };
        let accepted_from = SINGLE_WORDS.saturating_add(self.positions);
        let layout = Words::accepted_at(2)
            .with_drafts_at(0)
            .with_draft_tokens_at(1)
            .with_emitted_at(3)
            .with_draft_positions_at(SINGLE_WORDS..accepted_from)
            .with_accepted_positions_at(accepted_from..raw.words);
        let keep_alive: Option<Arc<dyn Any + Send + Sync>> = Some(Arc::clone(&self.block) as _);
        // SAFETY: the block is kept alive by the source, and is updated on this stream only. The stream is the caller's
        // promise at construction.
        unsafe {
            match self.thread {
                None => CudaSource::from_raw_parts(raw, layout, keep_alive),
                Some(_) => CudaSource::from_raw_parts_per_thread(raw, layout, keep_alive),
            }
        }
    }

    /// `CUdeviceptr` of the block, for those who want to look at it themselves.
    #[must_use]
    pub fn device_ptr(&self) -> u64 {
        self.block.block.address()
    }

    /// Counts a batch by what a rejection sampler has: the mask and the tokens put out.
    ///
    /// # Safety
    ///
    /// The arrays are in device memory that the context can read, as large as [`Mask`] says, and stay until the launch
    /// has run; captured, until the graph's last replay, these counters too.
    ///
    /// # Errors
    ///
    /// Where the driver refuses the launch; the step is then not counted.
    pub unsafe fn count_mask(&self, batch: Mask) -> Result<(), CudaError> {
        let (output, id_bytes) = batch.output.parts();
        self.on_the_stream(batch.batch, || {
            let arrays = (batch.accepted, output);
            // SAFETY: the caller vouches for the arrays.
            unsafe { self.launch_rows(Form::Mask, arrays, id_bytes, batch.drafted, batch.batch, batch.k) }
        })
    }

    /// Counts a batch of a greedy engine: `draft[batch, k]` against `target[batch, k + 1]`, what the target model
    /// chooses at the same places. The prefix in which they agree is accepted, and one token of the target follows.
    /// `drafted` is as in [`Mask`]. Both arrays have ids of one width.
    ///
    /// # Safety
    ///
    /// As [`count_mask`](Self::count_mask).
    ///
    /// # Errors
    ///
    /// As [`count_mask`](Self::count_mask).
    pub unsafe fn count_tokens(
        &self,
        draft: Tokens,
        target: Tokens,
        drafted: u64,
        batch: u32,
        k: u32,
    ) -> Result<(), CudaError> {
        let ((draft, id_bytes), (target, other)) = (draft.parts(), target.parts());
        if id_bytes != other {
            return Err(CudaError::Invalid("draft and target ids are of different widths"));
        }
        self.on_the_stream(batch, || {
            // SAFETY: the caller vouches for the arrays.
            unsafe { self.launch_rows(Form::Tokens, (draft, target), id_bytes, drafted, batch, k) }
        })
    }

    /// Counts a batch by its lengths. They are added as they are, so that a contradiction can be seen.
    ///
    /// # Safety
    ///
    /// As [`count_mask`](Self::count_mask).
    ///
    /// # Errors
    ///
    /// As [`count_mask`](Self::count_mask).
    pub unsafe fn count_lengths(&self, lengths: Lengths) -> Result<(), CudaError> {
        // SAFETY: the caller vouches for the arrays.
        self.on_the_stream(lengths.batch, || unsafe { self.launch_lengths(lengths) })
    }

    fn check_thread(&self) -> Result<(), CudaError> {
        match self.thread {
            Some(thread) if thread != std::thread::current().id() => Err(CudaError::WrongThread),
            _ => Ok(()),
        }
    }

    /// A launch is nothing that a capture forbids, so only the context is put in place.
    fn on_the_stream(&self, rows: u32, launch: impl FnOnce() -> Result<(), CudaError>) -> Result<(), CudaError> {
        self.check_thread()?;
        if self.context.driver.is_forked() {
            return Err(CudaError::Forked);
        }
        if rows == 0 {
            return Ok(());
        }
        let inside = Guard::enter_context(self.context.driver, self.context.handle)?;
        let launched = launch();
        launched.and(inside.leave())
    }

    /// # Safety
    ///
    /// As [`Kernels::launch`].
    unsafe fn launch_rows(
        &self,
        form: Form,
        (mut first, mut second): (Address, Address),
        mut id_bytes: c_int,
        mut drafted: Address,
        rows: c_uint,
        k: c_uint,
    ) -> Result<(), CudaError> {
        let (mut block, mut positions) = (self.device_ptr(), self.positions()?);
        let (mut batch, mut width) = (int(rows)?, int(k)?);
        let mut arguments = [
            place(&mut block),
            place(&mut positions),
            place(&mut first),
            place(&mut second),
            place(&mut id_bytes),
            place(&mut drafted),
            place(&mut batch),
            place(&mut width),
        ];
        // SAFETY: these are the eight arguments of both kernels in their order; the caller vouches for the arrays.
        unsafe { self.kernels.launch(self.context.driver, form, self.stream, rows, &mut arguments) }
    }

    /// # Safety
    ///
    /// As [`Kernels::launch`].
    unsafe fn launch_lengths(&self, mut lengths: Lengths) -> Result<(), CudaError> {
        let (mut block, mut positions, mut batch) = (self.device_ptr(), self.positions()?, int(lengths.batch)?);
        let mut arguments = [
            place(&mut block),
            place(&mut positions),
            place(&mut lengths.drafted),
            place(&mut lengths.accepted),
            place(&mut lengths.emitted),
            place(&mut batch),
        ];
        // SAFETY: these are the six arguments of the kernel in their order; the caller vouches for the arrays.
        unsafe { self.kernels.launch(self.context.driver, Form::Lengths, self.stream, lengths.batch, &mut arguments) }
    }

    fn positions(&self) -> Result<c_int, CudaError> {
        c_int::try_from(self.positions).map_err(|_| CudaError::Invalid("too many positions"))
    }
}

fn int(value: c_uint) -> Result<c_int, CudaError> {
    c_int::try_from(value).map_err(|_| CudaError::Invalid("the batch is larger than an `int`"))
}

fn words(positions: usize) -> usize {
    positions.saturating_mul(2).saturating_add(SINGLE_WORDS)
}
