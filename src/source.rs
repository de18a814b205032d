//! The one trait between the collector and whatever holds the counters.

use std::fmt;
use std::time::{Duration, Instant};

pub use crate::marks::{GpuTimes, Mark, Part};

/// Something that holds an engine's cumulative counters and can be asked for a snapshot of them without waiting.
///
/// The layer calls [`start`](Self::start) and [`poll`](Self::poll) on the engine's thread, inside its decode loop.
/// Neither may wait, allocate on a device, or change what the engine does. A panic in either is caught, and the source
/// is then treated as dead.
///
/// At most one snapshot is in flight. Everything counted is cumulative and never reset by the source; a word that
/// falls is taken for a restart of the whole block.
pub trait CounterSource: Send {
    /// Which quantities this source counts. Asked once, at attach.
    fn layout(&self) -> Layout;

    /// Starts a snapshot of all counters, ordered after all work that the engine has submitted so far.
    ///
    /// # Errors
    ///
    /// [`SourceError::Busy`] where it can't be started now but can at a later step, [`SourceError::Failed`] where
    /// trying again should wait, [`SourceError::Dead`] where no call will succeed again.
    fn start(&mut self) -> Result<(), SourceError>;

    /// Looks whether the snapshot has landed and, if so, writes it to `counters`.
    ///
    /// `counters` has been made for this source's [`layout`](Self::layout); words outside of the layout are ignored.
    /// While the answer is [`Snapshot::Pending`] it must be left as it is.
    ///
    /// # Errors
    ///
    /// [`SourceError::Busy`] leaves the snapshot in flight. After [`SourceError::Failed`] or [`SourceError::Dead`]
    /// there is none any more.
    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError>;

    /// Whether the counters are in host memory and can be read whole at any time.
    ///
    /// Such a source is polled each time a step closes, without a [`start`](Self::start) before it: there are no
    /// copies, and its counters are published step by step. A poll that fails is counted as a collection that failed or,
    /// busy, was skipped; the next close polls again, without backing off.
    fn is_on_host(&self) -> bool {
        false
    }

    /// Whether [`mark`](Self::mark) is to be called. Asked once, at attach.
    fn times_steps(&self) -> bool {
        false
    }

    /// Marks a point of the engine's stream, to measure what the device takes from one to another. Called around steps
    /// that are likely to be sampled, never while a snapshot is in flight; it must not wait.
    ///
    /// # Errors
    ///
    /// Cost the step its time, and nothing else. After [`SourceError::Dead`] no step is timed any more.
    fn mark(&mut self, mark: Mark) -> Result<(), SourceError> {
        let _ = mark;
        Ok(())
    }

    /// What lies between the marks made before the snapshot that has just landed; asked at most once for each, right
    /// after the poll. It must not wait.
    fn gpu_times(&mut self) -> Option<GpuTimes> {
        None
    }

    /// Waits for the snapshot, at most for `timeout`: used at attach, off the decode loop.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll); [`Snapshot::Pending`] after the timeout is no error here.
    fn wait(&mut self, counters: &mut Counters, timeout: Duration) -> Result<Snapshot, SourceError> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            match self.poll(counters)? {
                Snapshot::Pending if deadline.is_some_and(|deadline| Instant::now() < deadline) => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                answer => return Ok(answer),
            }
        }
    }
}

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// The counters have been written.
    Landed,
    /// The snapshot is still on its way.
    Pending,
}

/// Which quantities a [`CounterSource`] counts. The accepted prefix is always among them.
///
/// A source that counts its drafts too (by word, or per position: the drafts are those with a token at position 0) is
/// consistent by itself, also where the engine runs ahead of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub(crate) emitted: bool,
    pub(crate) drafts: bool,
    pub(crate) draft_tokens: bool,
    pub(crate) accepted_positions: usize,
    pub(crate) draft_positions: usize,
}

impl Layout {
    /// A source that counts accepted tokens and nothing else.
    #[must_use]
    pub const fn accepted() -> Self {
        Self { emitted: false, drafts: false, draft_tokens: false, accepted_positions: 0, draft_positions: 0 }
    }

    /// Emitted tokens are counted as well.
    #[must_use]
    pub const fn with_emitted(self) -> Self {
        Self { emitted: true, ..self }
    }

    /// Drafts (verified sequences) are counted as well.
    #[must_use]
    pub const fn with_drafts(self) -> Self {
        Self { drafts: true, ..self }
    }

    /// Draft tokens are counted as well.
    #[must_use]
    pub const fn with_draft_tokens(self) -> Self {
        Self { draft_tokens: true, ..self }
    }

    /// Accepted tokens are counted per draft position as well, for positions `0..positions`; 4,096 at most.
    #[must_use]
    pub const fn with_accepted_positions(self, positions: usize) -> Self {
        Self { accepted_positions: positions, ..self }
    }

    /// Draft tokens are counted per draft position as well, for positions `0..positions`; 4,096 at most.
    #[must_use]
    pub const fn with_draft_positions(self, positions: usize) -> Self {
        Self { draft_positions: positions, ..self }
    }
}

/// One snapshot of a source's cumulative counters, all words as of one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The accepted prefix of each draft, summed; the target model's own token is not in it.
    pub accepted: u64,
    /// Tokens emitted by the drafted sequences, the target model's own included.
    pub emitted: u64,
    /// Sequences whose drafts were verified, one per sequence and step.
    pub drafts: u64,
    /// Tokens submitted to verification.
    pub draft_tokens: u64,
    /// Accepted tokens by draft position.
    pub accepted_per_position: Box<[u64]>,
    /// Draft tokens by draft position.
    pub draft_per_position: Box<[u64]>,
    /// Drafts that are in none of the other words, since more was accepted than drafted: an anomaly each.
    pub accepted_exceeds_draft: u64,
    /// Drafts that are in none of the other words, since more was emitted than drafted plus one: an anomaly each.
    pub emitted_exceeds_possible: u64,
}

impl Counters {
    /// Zeros, with room for the positions of `layout`.
    #[must_use]
    pub fn for_layout(layout: Layout) -> Self {
        Self {
            accepted_per_position: vec![0; layout.accepted_positions].into(),
            draft_per_position: vec![0; layout.draft_positions].into(),
            ..Self::default()
        }
    }
}

/// Why a source could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceError {
    /// Not now: the next step tries again.
    Busy(Busy),
    /// It went wrong: the layer backs off, and what was counted is held back until the source recovers.
    Failed(Failed),
    /// It will never work again: no further call is made.
    Dead(Dead),
}

/// Why a snapshot can't be taken at this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Busy {
    /// The engine's stream is being captured into a graph.
    Capturing,
    /// Somebody else is using what the snapshot needs.
    Contended,
    /// The counters may be touched on another thread only.
    WrongThread,
}

/// Why a snapshot failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failed {
    /// It took longer than the source allows.
    Timeout,
    /// The driver answered with this code.
    Driver(u32),
}

/// Why a source will never work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dead {
    /// The device is gone, or its error state can't be cleared.
    DeviceLost,
    /// There is no driver (any more).
    NoDriver,
    /// The source panicked.
    Panicked,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(Busy::Capturing) => f.write_str("the engine's stream is being captured"),
            Self::Busy(Busy::Contended) => f.write_str("the source is in use elsewhere"),
            Self::Busy(Busy::WrongThread) => f.write_str("the source may be used on another thread only"),
            Self::Failed(Failed::Timeout) => f.write_str("the snapshot took too long"),
            Self::Failed(Failed::Driver(code)) => write!(f, "the driver answered with error {code}"),
            Self::Dead(Dead::DeviceLost) => f.write_str("the device is lost"),
            Self::Dead(Dead::NoDriver) => f.write_str("there is no driver"),
            Self::Dead(Dead::Panicked) => f.write_str("the source panicked"),
        }
    }
}

impl std::error::Error for SourceError {}
