//! The handle: what an application asks of the layer, and tells it, off the decode loop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::attachment::{Attachment, Zeroed};
use crate::attributes::EngineAttributes;
use crate::books::Prepaid;
use crate::collector::Collector;
use crate::engine::{Engine, Holding};
use crate::engines::Refused;
use crate::errors::{AttachError, DescribeError, FlushError};
use crate::flush::flush;
use crate::metrics::SpecDecodeMetrics;
use crate::published::word;
use crate::shared::Shared;
use crate::source::CounterSource;
use crate::status::Status;

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
        books.prepaid = Prepaid::default();
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
        flush(&self.shared, timeout)
    }

    /// After warm-up and a flush, between steps: `metrics` and the next window count from here. A copy in flight becomes
    /// void; exported counters go on. Does nothing for an engine whose thread keeps it busy for five seconds.
    pub fn rebase(&self, engine: &str) {
        let Some(engine) = self.shared.engines.find(engine) else { return };
        let Some(holding) = self.hold(engine, PATIENCE) else { return };
        if let Some(mut books) = engine.books() {
            books.base = books.totals(engine);
            books.prepaid.is_before_base = true;
            if let Some(flight) = books.attachment.as_ref().and_then(|attachment| attachment.collector.flight()) {
                engine.hot.make_void(flight.generation);
            }
            let now = self.shared.ticks.now();
            if books.base.amounts == engine.published_amounts() {
                engine.begin_window(now);
            } else {
                // As `metrics` does: behind a sample with a mark the published totals don't belong together.
                engine.begin_window_from(now, &books.base.amounts);
            }
        }
        drop(holding);
    }

    /// An engine's totals since attach or rebase, as last published; `None` for an engine that is not known, or whose thread
    /// keeps it busy for five seconds.
    #[must_use]
    pub fn metrics(&self, engine: &str) -> Option<SpecDecodeMetrics> {
        let engine = self.shared.engines.find(engine)?;
        let holding = self.hold(engine, PATIENCE)?;
        let books = engine.books()?;
        let metrics = books.totals(engine).minus(&books.base, &self.shared.ticks);
        drop(books);
        drop(holding);
        Some(metrics)
    }

    /// How an engine is doing: the answer to "no data?".
    #[must_use]
    pub fn status(&self, engine: &str) -> Status {
        let Some(engine) = self.shared.engines.find(engine) else { return Status::default() };
        Status::of(engine, &self.shared)
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
