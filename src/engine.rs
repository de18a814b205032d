//! One engine: what happens to it when its steps begin, are left and close, and who does the accounting.
//!
//! Everything here runs on the engine's own thread, inside its decode loop.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::attributes::EngineAttributes;
use crate::baton::{Baton, Left};
use crate::books::Books;
use crate::published::Published;
use crate::quantity::Quantities;
use crate::shared::Shared;
use crate::slot::{Slot, Visits};
use crate::tally::HeldTally;
use crate::ticks::NEVER;
use crate::window::OpenWindow;

/// An engine of this process.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) index: u32,
    pub(crate) name: Box<str>,
    pub(crate) attributes: EngineAttributes,
    pub(crate) hot: Hot,
    pub(crate) published: Published,
    pub(crate) window: OpenWindow,
    /// Steps that are in no sample of the source yet.
    pub(crate) held: HeldTally,
    /// A source is attached, or is being attached.
    pub(crate) has_source: AtomicBool,
    #[cfg(feature = "otel-trace")]
    pub(crate) trace: crate::trace::EngineTrace,
    baton: Baton,
    books: Mutex<Books>,
}

/// What a callback looks at before it knows whether there is anything to do. Written by the holder of the baton.
#[derive(Debug)]
pub(crate) struct Hot {
    /// From this tick on a copy may start.
    pub(crate) due: AtomicU64,
    /// From this tick on the copy in flight may be looked at.
    pub(crate) poll_at: AtomicU64,
    /// The generation of the copy in flight if it counts on its steps to be over; 0 otherwise.
    pub(crate) follows_exits: AtomicU64,
    /// The generation of a copy that holds half a step, or belongs to the time before a rebase.
    pub(crate) void: AtomicU64,
    /// Steps of this engine are entered more than once: they are futures, and over only when they close.
    pub(crate) futures: AtomicBool,
    /// The span id of the step that is being timed on the device; 0 where none is.
    pub(crate) timed: AtomicU64,
    /// A copy is in flight.
    pub(crate) in_flight: AtomicBool,
    /// A closed step has to go into the books: a copy is in flight, the source is on the host, or something is prepaid.
    pub(crate) opens_books: AtomicBool,
    /// The quantities that the source counts, as bits; 0 without a source, or [`Hot::PREPAID`].
    pub(crate) from_source: AtomicU8,
    /// Starts that were skipped because another thread was accounting: counted outside of the baton.
    pub(crate) contended: AtomicU64,
}

impl Hot {
    const fn new() -> Self {
        Self {
            due: AtomicU64::new(NEVER),
            poll_at: AtomicU64::new(NEVER),
            follows_exits: AtomicU64::new(0),
            void: AtomicU64::new(0),
            futures: AtomicBool::new(false),
            timed: AtomicU64::new(0),
            in_flight: AtomicBool::new(false),
            opens_books: AtomicBool::new(false),
            from_source: AtomicU8::new(0),
            contended: AtomicU64::new(0),
        }
    }

    /// The copy of this generation is void. It may be over by now, and a later one void too.
    pub(crate) fn make_void(&self, generation: u64) {
        self.void.fetch_max(generation, Ordering::SeqCst);
    }

    /// No source counts, but a closed step has to go into the books, which know what was published before.
    const PREPAID: u8 = !Quantities::ALL.bits();

    pub(crate) fn is_prepaid(&self) -> bool {
        self.from_source.load(Ordering::Relaxed) == Self::PREPAID
    }

    /// From here on the fields count, less what is prepaid.
    pub(crate) fn count_by_fields(&self, has_prepaid: bool) {
        self.from_source.store(if has_prepaid { Self::PREPAID } else { 0 }, Ordering::Relaxed);
        self.opens_books.store(has_prepaid, Ordering::Relaxed);
    }
}

impl Engine {
    pub(crate) fn new(index: u32, name: &str, attributes: EngineAttributes, positions: usize) -> Self {
        Self {
            index,
            name: name.into(),
            attributes,
            hot: Hot::new(),
            published: Published::new(positions),
            window: OpenWindow::new(),
            held: HeldTally::new(),
            has_source: AtomicBool::new(false),
            #[cfg(feature = "otel-trace")]
            trace: crate::trace::EngineTrace::default(),
            baton: Baton::default(),
            books: Mutex::default(),
        }
    }

    /// A step was entered; `before` are its visits until then.
    #[inline]
    pub(crate) fn entered(&self, slot: &Slot, before: Visits, shared: &Shared) {
        if !before.ever_entered() {
            self.begin(shared);
            if shared.has_timed_sources() {
                self.begin_timing(slot, shared);
            }
        } else if before.inside() == 0 {
            self.reentered(slot);
        }
    }

    /// Nobody is inside a step any more.
    #[inline]
    pub(crate) fn left(&self, slot: &Slot, now: u64, shared: &Shared) {
        if now >= self.hot.due.load(Ordering::Relaxed) {
            self.start_copy(now, Some(slot), slot.id(), shared);
        }
    }

    /// A step is closed.
    #[inline(always)]
    pub(crate) fn closed(&self, index: u32, slot: &Slot, shared: &Shared) {
        let (ever_entered, id) = (slot.visits().ever_entered(), slot.id());
        if !ever_entered {
            self.begin(shared);
        }
        if self.baton.try_take() {
            let holding = Holding { engine: self, shared };
            self.account(slot, shared);
            slot.free();
            drop(holding);
        } else {
            self.leave(index, shared);
        }
        if !ever_entered || self.hot.futures.load(Ordering::Relaxed) {
            self.start_if_due(id, shared);
        }
    }

    /// What a begin and an exit do, without a step.
    pub(crate) fn idle(&self, shared: &Shared) {
        self.begin(shared);
        self.start_if_due(0, shared);
    }

    /// Leaves a closed step to whoever holds the baton, or takes it after all.
    #[cold]
    fn leave(&self, index: u32, shared: &Shared) {
        let index = shared.steps.set_aside(index);
        if self.baton.take_or_leave(index, |before| shared.steps.link(index, before)) {
            let holding = Holding { engine: self, shared };
            if let Some(slot) = shared.steps.get(index) {
                self.account_left(slot, shared);
            }
            drop(holding);
        }
    }

    /// A step begins: the copy in flight may have landed.
    #[inline]
    fn begin(&self, shared: &Shared) {
        let poll_at = self.hot.poll_at.load(Ordering::Relaxed);
        if poll_at != NEVER {
            self.look_at_copy(poll_at, shared);
        }
    }

    #[cold]
    fn look_at_copy(&self, poll_at: u64, shared: &Shared) {
        let now = shared.ticks.now();
        if now >= poll_at
            && let Some(holding) = self.try_hold(shared)
        {
            holding.poll_copy(now, false);
        }
    }

    /// The step `over` has closed, or there is none (0): the interval may have passed.
    #[inline]
    fn start_if_due(&self, over: u64, shared: &Shared) {
        let due = self.hot.due.load(Ordering::Relaxed);
        if due != NEVER {
            let now = shared.ticks.now();
            if now >= due {
                self.start_copy(now, None, over, shared);
            }
        }
    }

    #[cold]
    fn start_copy(&self, now: u64, starter: Option<&Slot>, over: u64, shared: &Shared) {
        if starter.is_some() && self.hot.futures.load(Ordering::Relaxed) {
            // A future is over when it closes, not when it is left.
            #[cfg(feature = "otel-trace")]
            self.trace.starts_at_close();
            return;
        }
        match self.try_hold(shared) {
            Some(holding) => holding.start_copy_if_due(now, starter, over),
            None => {
                self.hot.timed.store(0, Ordering::SeqCst);
                self.hot.contended.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A step that was over is entered again: the engine's steps are futures. A copy that counts on this one to be over
    /// holds half a step.
    #[cold]
    fn reentered(&self, slot: &Slot) {
        if !self.hot.futures.load(Ordering::Relaxed) {
            self.hot.futures.store(true, Ordering::SeqCst);
        }
        let generation = self.hot.follows_exits.load(Ordering::SeqCst);
        if generation != 0 && slot.left_at().before(generation) {
            self.hot.make_void(generation);
        }
    }

    /// Takes the baton if nobody holds it.
    #[inline]
    pub(crate) fn try_hold<'a>(&'a self, shared: &'a Shared) -> Option<Holding<'a>> {
        self.baton.try_take().then(|| Holding { engine: self, shared })
    }

    /// The source's guard is gone. Detaches it, or leaves that to whoever holds the baton.
    pub(crate) fn detach(&self, shared: &Shared) {
        if self.baton.take_or_ask_to_detach() {
            let holding = Holding { engine: self, shared };
            self.release_source(shared);
            drop(holding);
        }
    }

    /// The place for a source is free again.
    pub(crate) fn leave_place(&self, shared: &Shared) {
        shared.sources.fetch_sub(1, Ordering::SeqCst);
        self.has_source.store(false, Ordering::SeqCst);
    }

    /// The books, for the holder of the baton: nobody else opens them.
    pub(crate) fn books(&self) -> Option<MutexGuard<'_, Books>> {
        match self.books.try_lock() {
            Ok(books) => Some(books),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The baton, held. Dropping it does what others left, then passes it on.
#[derive(Debug)]
pub(crate) struct Holding<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) shared: &'a Shared,
}

impl Drop for Holding<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(left) = self.engine.baton.pass() {
            self.see_to(left);
        }
    }
}

impl Holding<'_> {
    #[cold]
    fn see_to(&self, mut left: Left) {
        loop {
            for index in self.shared.steps.left(left.newest) {
                if let Some(slot) = self.shared.steps.get(index) {
                    self.engine.account_left(slot, self.shared);
                }
            }
            if left.detach {
                self.engine.release_source(self.shared);
            }
            match self.engine.baton.pass() {
                Some(more) => left = more,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_void_when_an_earlier_one_is_found_to_be() {
        let hot = Hot::new();
        hot.make_void(7);
        hot.make_void(5);
        assert_eq!(hot.void.load(Ordering::SeqCst), 7);
    }
}
