//! The handle: what an application asks of the layer, and tells it, off the decode loop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::attachment::{Attachment, Sample, Zeroed};
use crate::attributes::EngineAttributes;
use crate::books::{End, Steps, Totals};
use crate::collection::{Started, state};
use crate::collector::Collector;
use crate::engine::{Engine, Holding};
use crate::engines::Refused;
use crate::metrics::SpecDecodeMetrics;
use crate::published::{gave, word};
use crate::quantity::Quantity;
use crate::shared::Shared;
use crate::source::{Busy, CounterSource, Failed, SourceError};
use crate::ticks::{NEVER, Ticks};

/// How long a call of the handle waits for an engine's thread to finish what it is doing, and an attach for its zero.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A handle to the layer. Clones are handles to the same; keep one until after the meter provider's shutdown.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Names the attributes of an engine, before its first step and before a source is attached to it.
    ///
    /// # Errors
    ///
    /// The engine is known already, its name is empty or longer than 64 bytes, or there are too many engines.
    pub fn describe(&self, engine: &str, attributes: EngineAttributes) -> Result<(), DescribeError> {
        match self.shared.engines.add(engine, attributes) {
            Ok((_, true)) => Ok(()),
            Ok((_, false)) => Err(DescribeError::Known),
            Err(Refused::Name) => Err(DescribeError::Name),
            Err(Refused::Full) => Err(DescribeError::TooManyEngines),
        }
    }

    /// Attaches a source to an engine: reads its counters once, as the zero, and waits for that, at most five seconds.
    ///
    /// Attach between steps. What was counted before is not the layer's. Dropping the guard detaches, without waiting;
    /// flush first, or what lies between the last sample and the drop is lost.
    ///
    /// # Errors
    ///
    /// The engine has a source, its name is refused, there are too many engines, or the source can't be read.
    pub fn attach(&self, engine: &str, source: impl CounterSource + 'static) -> Result<Attached, AttachError> {
        let engine = self.shared.engines.find_or_add(engine).map_err(|refused| match refused {
            Refused::Name => AttachError::Name,
            Refused::Full => AttachError::TooManyEngines,
        })?;
        let place = Place::reserve(engine, &self.shared).ok_or(AttachError::Attached)?;
        let zeroed = Zeroed::read(source, PATIENCE).map_err(AttachError::Source)?;
        let holding = self.hold(engine, PATIENCE).ok_or(AttachError::Busy)?;
        let mut books = engine.books().ok_or(AttachError::Busy)?;
        let now = self.shared.ticks.now();
        let collector = Collector::new(self.shared.interval_ticks, now);
        let attachment = Attachment::new(zeroed, collector);
        engine.hot.from_source.store(attachment.layout().quantities().bits(), Ordering::Relaxed);
        engine.show(&attachment, &self.shared);
        engine.begin_window(now);
        if attachment.times_steps {
            self.shared.timed_sources.fetch_add(1, Ordering::SeqCst);
        }
        {
            let words = engine.published.write();
            words.set(word::LAST_SAMPLE, now);
            words.set_bits(word::GAVE, attachment.layout().given());
        }
        books.base = engine.totals();
        books.sample = books.base.clone();
        books.attachment = Some(attachment);
        drop(books);
        drop(holding);
        place.keep();
        Ok(Attached { shared: Arc::clone(&self.shared), engine: engine.index })
    }

    /// What a begin and an exit of a step do, without a step: for the idle branch of the engine's loop, on its thread.
    /// Never waits.
    pub fn poll(&self, engine: &str) {
        if let Some(engine) = self.shared.engines.find(engine) {
            engine.idle(&self.shared);
        }
    }

    /// Waits out copies in flight, takes one more of every engine, and publishes.
    ///
    /// After `Ok` the exported totals are what the engines did, to the token. Call it off the decode thread and not
    /// inside a step, before detaching and before the meter provider's shutdown. (A source for a per-thread stream has
    /// to be flushed on that thread.)
    ///
    /// # Errors
    ///
    /// Names each engine that could not be flushed in time, and why. The others are published all the same.
    pub fn flush(&self, timeout: Duration) -> Result<(), FlushError> {
        let deadline = Instant::now().checked_add(timeout);
        let mut waiting: Vec<Flush<'_>> =
            self.shared.engines.iter().map(|engine| Flush { engine, own: None, why: FlushFailure::Busy }).collect();
        let mut failures = Vec::new();
        let mut pause = Duration::from_micros(20);
        loop {
            waiting.retain_mut(|flush| match flush.go_on(&self.shared) {
                Progress::Done => false,
                Progress::Failed(failure) => {
                    failures.push((flush.engine.name.to_string(), failure));
                    false
                }
                Progress::Waiting(why) => {
                    flush.why = why;
                    true
                }
            });
            if waiting.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            std::thread::sleep(pause);
            pause = pause.saturating_mul(2).min(Duration::from_millis(1));
        }
        #[cfg(feature = "otel-trace")]
        self.shared.flush_traces(deadline);
        failures.extend(waiting.iter().map(|flush| (flush.engine.name.to_string(), flush.why)));
        if failures.is_empty() { Ok(()) } else { Err(FlushError { failures }) }
    }

    /// After warm-up and a flush: `metrics` and the next window count from here. A copy in flight becomes void; exported
    /// counters go on.
    pub fn rebase(&self, engine: &str) {
        let Some(engine) = self.shared.engines.find(engine) else { return };
        let Some(holding) = self.hold(engine, PATIENCE) else { return };
        if let Some(mut books) = engine.books() {
            let totals = engine.totals();
            let by_sample = books
                .attachment
                .as_ref()
                .is_some_and(|attachment| !attachment.on_host && !attachment.collector.is_dead());
            books.base = if by_sample { books.sample.clone() } else { totals };
            if let Some(flight) = books.attachment.as_ref().and_then(|attachment| attachment.collector.flight()) {
                engine.hot.void.store(flight.generation, Ordering::SeqCst);
            }
            engine.begin_window(self.shared.ticks.now());
        }
        drop(holding);
    }

    /// An engine's totals since attach or rebase, as last published; `None` for an engine that is not known.
    #[must_use]
    pub fn metrics(&self, engine: &str) -> Option<SpecDecodeMetrics> {
        let engine = self.shared.engines.find(engine)?;
        let holding = self.hold(engine, PATIENCE)?;
        let books = engine.books()?;
        let metrics = match &books.attachment {
            Some(attachment) if !attachment.on_host && !attachment.collector.is_dead() => {
                books.sample.minus(&books.base, &self.shared.ticks)
            }
            _ => engine.totals().minus(&books.base, &self.shared.ticks),
        };
        drop(books);
        drop(holding);
        Some(metrics)
    }

    /// How an engine is doing: the answer to "no data?".
    #[must_use]
    pub fn status(&self, engine: &str) -> Status {
        let Some(engine) = self.shared.engines.find(engine) else { return Status::default() };
        let Some(reading) = engine.published.read_within(PATIENCE) else { return Status::default() };
        let now = self.shared.ticks.now();
        let age = |since: u64| (since != NEVER).then(|| self.shared.ticks.duration(now.saturating_sub(since)));
        let [plain, drafted] = Steps::read(|word| reading.words[word]).closed;
        Status {
            steps: plain.saturating_add(drafted),
            open_steps: self.shared.steps.count_of_engine(engine.index),
            last_sample_age: age(reading.words[word::LAST_SAMPLE]),
            source: match reading.words[word::SOURCE_STATE] {
                state::ON_HOST => SourceState::OnHost,
                state::IDLE => SourceState::Idle,
                state::IN_FLIGHT => {
                    SourceState::InFlight(age(reading.words[word::IN_FLIGHT_SINCE]).unwrap_or_default())
                }
                state::BACKING_OFF => SourceState::BackingOff,
                state::DEAD => SourceState::Dead,
                _ => SourceState::None,
            },
        }
    }

    /// All engines' exported numbers, for any other metrics system.
    #[must_use]
    pub fn totals(&self) -> crate::totals::Totals {
        crate::totals::Totals::of(&self.shared)
    }

    /// Waits for the engine's baton: only callers of the handle ever do.
    fn hold<'a>(&'a self, engine: &'a Engine, patience: Duration) -> Option<Holding<'a>> {
        let deadline = Instant::now().checked_add(patience);
        loop {
            if let Some(holding) = engine.try_hold(&self.shared) {
                return Some(holding);
            }
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                return None;
            }
            std::thread::yield_now();
        }
    }
}

/// An engine's place for a source, taken; given back when this is dropped, unless it is kept.
struct Place<'a> {
    engine: &'a Engine,
    shared: &'a Shared,
}

impl<'a> Place<'a> {
    fn reserve(engine: &'a Engine, shared: &'a Shared) -> Option<Self> {
        let was_free = !engine.has_source.swap(true, Ordering::SeqCst);
        was_free.then(|| {
            shared.sources.fetch_add(1, Ordering::SeqCst);
            Self { engine, shared }
        })
    }

    /// The source has taken its place; whoever releases it frees the place.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.engine.leave_place(self.shared);
    }
}

/// The flush of one engine, as far as it has come.
struct Flush<'a> {
    engine: &'a Engine,
    /// The generation of the copy that this flush has started.
    own: Option<u64>,
    why: FlushFailure,
}

enum Progress {
    Done,
    Waiting(FlushFailure),
    Failed(FlushFailure),
}

impl Flush<'_> {
    fn go_on(&mut self, shared: &Shared) -> Progress {
        let Some(holding) = self.engine.try_hold(shared) else { return Progress::Waiting(FlushFailure::Busy) };
        let now = shared.ticks.now();
        holding.poll_copy(now, true);
        let Some(mut books) = self.engine.books() else { return Progress::Waiting(FlushFailure::Busy) };
        let Some(attachment) = books.attachment.as_mut() else {
            if self.engine.is_under_way(None, shared) {
                return Progress::Waiting(FlushFailure::Busy);
            }
            self.engine.turn_window(&self.engine.published.write(), now, shared, End::Early);
            return Progress::Done;
        };
        if attachment.collector.is_dead() {
            return Progress::Failed(FlushFailure::Dead);
        }
        if !attachment.counts_drafts() && self.engine.is_under_way(None, shared) {
            return Progress::Waiting(FlushFailure::Busy);
        }
        if attachment.on_host {
            return match self.engine.read_host(&mut books, shared, None, true) {
                None => Progress::Done,
                Some(error) => waiting_or_failed(error),
            };
        }
        if attachment.collector.flight().is_some() {
            return Progress::Waiting(FlushFailure::Timeout);
        }
        if self.own.take().is_some() {
            // The copy of this flush has ended: well, unless it was void or has failed.
            let resolved = !attachment.collector.is_backing_off()
                && self.engine.hot.void.load(Ordering::SeqCst) != attachment.collector.generation();
            if resolved {
                return Progress::Done;
            }
            if attachment.collector.is_backing_off() {
                return Progress::Failed(FlushFailure::Failed);
            }
        }
        let sample = Sample { by_flush: true, ..Sample::default() };
        let first = self.why == FlushFailure::Busy;
        match holding.start_copy(&mut books, now, None, sample, first) {
            Some(Started::Yes(generation)) => {
                self.own = Some(generation);
                Progress::Waiting(FlushFailure::Timeout)
            }
            Some(Started::Refused(error)) => waiting_or_failed(error),
            Some(Started::NoLonger) | None => Progress::Waiting(FlushFailure::Busy),
        }
    }
}

fn waiting_or_failed(error: SourceError) -> Progress {
    match error {
        SourceError::Busy(Busy::WrongThread) => Progress::Waiting(FlushFailure::WrongThread),
        SourceError::Busy(_) => Progress::Waiting(FlushFailure::Busy),
        SourceError::Failed(Failed::Timeout) => Progress::Waiting(FlushFailure::Timeout),
        SourceError::Failed(_) => Progress::Failed(FlushFailure::Failed),
        SourceError::Dead(_) => Progress::Failed(FlushFailure::Dead),
    }
}

impl Totals {
    pub(crate) fn minus(&self, base: &Self, ticks: &Ticks) -> SpecDecodeMetrics {
        let amounts = self.amounts.minus(&base.amounts);
        let given = |bit: u64| self.given & bit != 0;
        let count = |quantity: Quantity| given(1 << quantity as u64).then(|| amounts.get(quantity));
        let per_position = |bit: u64, now: &[u64], then: &[u64]| {
            let then = then.iter().copied().chain(std::iter::repeat(0));
            let difference = now.iter().zip(then).map(|(now, then)| now.saturating_sub(then));
            given(bit).then(|| difference.take(self.positions).collect())
        };
        let steps = self.steps.minus(&base.steps);
        let [plain_steps, drafted_steps] = steps.totals(self.given, ticks);
        let [draft_time, verify_time] = steps.phase_ticks.map(|phase| ticks.duration(phase));
        SpecDecodeMetrics {
            num_spec_tokens: (self.num_spec_tokens > 0).then_some(self.num_spec_tokens),
            drafts: count(Quantity::Drafts),
            draft_tokens: count(Quantity::DraftTokens),
            accepted_tokens: count(Quantity::Accepted),
            emitted_tokens: count(Quantity::Emitted),
            accepted_per_position: per_position(
                gave::ACCEPTED_PER_POSITION,
                &self.accepted_per_position,
                &base.accepted_per_position,
            ),
            draft_per_position: per_position(
                gave::DRAFT_PER_POSITION,
                &self.draft_per_position,
                &base.draft_per_position,
            ),
            drafted_steps,
            plain_steps,
            draft_time,
            verify_time,
            gpu: steps.gpu_totals(),
        }
    }
}

/// A source's attachment to an engine. Dropping it detaches, without waiting.
#[derive(Debug)]
#[must_use = "dropping the guard detaches the source"]
pub struct Attached {
    shared: Arc<Shared>,
    engine: u32,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(engine) = self.shared.engines.get(self.engine) {
            engine.detach(&self.shared);
        }
    }
}

/// How an engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Steps that have closed. If it stays 0 while the engine runs, its spans don't reach the layer: most often a
    /// global `EnvFilter` hides them.
    pub steps: u64,
    /// Steps that are open. If it grows, each step is the child of the last: a guard is kept while the next is made.
    pub open_steps: usize,
    /// How old the last sample of the source is; `None` where there has been none.
    pub last_sample_age: Option<Duration>,
    /// What the source is doing.
    pub source: SourceState,
}

/// One line for a log or a health page.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.steps, self.open_steps) {
            (0, 0) => f.write_str("no step has reached the layer: does a filter on the whole stack hide its spans?")?,
            (0, open) => write!(f, "no step has closed, {open} open: is each the child of the last?")?,
            (steps, open) => write!(f, "{steps} steps closed, {open} open")?,
        }
        write!(f, "; {}", self.source)?;
        match self.last_sample_age {
            Some(age) => write!(f, ", last sample {:.1} s ago", age.as_secs_f64()),
            None => Ok(()),
        }
    }
}

/// What an engine's source is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceState {
    /// No source is attached: the spans' fields count.
    #[default]
    None,
    /// Its counters are on the host, and read at each close.
    OnHost,
    /// No copy is in flight.
    Idle,
    /// A copy has been in flight for so long.
    InFlight(Duration),
    /// It failed, and will be tried again.
    BackingOff,
    /// It will not be tried again.
    Dead,
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no source, the fields count"),
            Self::OnHost => f.write_str("source on the host"),
            Self::Idle => f.write_str("source idle"),
            Self::InFlight(age) => write!(f, "a copy in flight for {:.1} s", age.as_secs_f64()),
            Self::BackingOff => f.write_str("source failed, will be tried again"),
            Self::Dead => f.write_str("source dead, the fields count"),
        }
    }
}

/// Why an engine could not be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DescribeError {
    /// Its steps have begun, or it was described or attached before.
    Known,
    /// Its name is empty or longer than 64 bytes.
    Name,
    /// There are as many engines as the builder allows.
    TooManyEngines,
}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known => "the engine is known already: describe it before its first step and before attaching",
            Self::Name => "an engine's name has 1 to 64 bytes",
            Self::TooManyEngines => "there are as many engines as the builder allows",
        })
    }
}

impl std::error::Error for DescribeError {}

/// Why a source could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The engine has a source.
    Attached,
    /// The engine's thread kept the engine busy.
    Busy,
    /// The engine's name is empty or longer than 64 bytes.
    Name,
    /// There are as many engines as the builder allows.
    TooManyEngines,
    /// The source's zero could not be read.
    Source(SourceError),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => f.write_str("the engine has a source: drop its guard first"),
            Self::Busy => f.write_str("the engine's thread kept the engine busy"),
            Self::Name => f.write_str("an engine's name has 1 to 64 bytes"),
            Self::TooManyEngines => f.write_str("there are as many engines as the builder allows"),
            Self::Source(error) => write!(f, "the source's zero could not be read: {error}"),
        }
    }
}

impl std::error::Error for AttachError {}

/// Engines that could not be flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushError {
    failures: Vec<(String, FlushFailure)>,
}

impl FlushError {
    /// Each engine that failed, and why.
    pub fn failures(&self) -> impl Iterator<Item = (&str, FlushFailure)> {
        self.failures.iter().map(|(engine, failure)| (engine.as_str(), *failure))
    }
}

/// Why an engine could not be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushFailure {
    /// A step was open, or the source busy, until the deadline.
    Busy,
    /// The copy did not land before the deadline; it stays in flight.
    Timeout,
    /// The source failed.
    Failed,
    /// The source is dead.
    Dead,
    /// The source may be used on another thread only.
    WrongThread,
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not flushed:")?;
        for (engine, failure) in self.failures() {
            write!(f, " engine {engine:?} ({failure:?})")?;
        }
        Ok(())
    }
}

impl std::error::Error for FlushError {}
