//! The collect span: from the start of a copy to what became of it, a child of the step that started it.
//!
//! The OpenTelemetry context of a step is taken at an exit of that step, and of no other steps than those that start a
//! copy or see it end: taking it starts the step's span, and before the first exit an engine may still want to set its
//! parent, while at the close the span may be gone already. Its ids are all that is kept, so no span is held open.

mod filter;
mod span;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Instant, SystemTime};

use opentelemetry::trace::{SpanContext, TraceContextExt};
use tracing::Dispatch;
use tracing::dispatcher::WeakDispatch;
use tracing::span::Id;

use crate::engine::Engine;
use crate::outcome::{Outcome, Reason};
use crate::quantity::Amounts;
use crate::shared::Shared;
use crate::slot::Slot;

pub use filter::CollectingSteps;
use span::Collected;
pub(crate) use span::{MakeSpan, Outbox, span_maker};

thread_local! {
    /// The step whose callback this thread is in; 0 outside of any.
    static STEP: Cell<u64> = const { Cell::new(0) };
}

/// This thread is in a callback of a step, until this is dropped.
#[derive(Debug)]
pub(crate) struct InStep(u64);

impl InStep {
    pub(crate) fn new(id: &Id) -> Self {
        Self(STEP.replace(id.into_u64()))
    }
}

impl Drop for InStep {
    fn drop(&mut self) {
        STEP.set(self.0);
    }
}

/// What a layer needs to make collect spans.
#[derive(Debug)]
pub(crate) struct Tracing {
    /// Where the OpenTelemetry layer is looked for. Weak: the dispatch owns the layer that owns this.
    dispatch: OnceLock<WeakDispatch>,
    outbox: Outbox,
}

impl Tracing {
    pub(crate) fn new(outbox: Outbox) -> Self {
        Self { dispatch: OnceLock::new(), outbox }
    }

    pub(crate) fn register(&self, dispatch: &Dispatch) {
        // The first one stays: it is the one whose spans the layer sees.
        let _ = self.dispatch.set(dispatch.downgrade());
    }

    /// A step is left: `exited` is what there is to do in any case, and what may start a copy.
    #[inline(never)]
    pub(crate) fn exited(&self, id: &Id, engine: &Engine, exited: impl FnOnce()) {
        let _in_step = InStep::new(id);
        exited();
        if engine.trace.wants_context.load(Ordering::Relaxed) {
            engine.trace_exit(id, self);
        }
    }

    /// A step is closed, likewise.
    #[inline(never)]
    pub(crate) fn closed(&self, id: &Id, engine: &Engine, closed: impl FnOnce()) {
        let _in_step = InStep::new(id);
        closed();
        if engine.trace.wants_context.load(Ordering::Relaxed) {
            engine.trace_close(id, self);
        }
    }

    /// The ids of a step's span, if it is traced and sampled. Starts the span; the step must not be closed.
    fn context_of(&self, id: &Id) -> Option<SpanContext> {
        let dispatch = self.dispatch.get()?.upgrade()?;
        // It panics where the subscriber is not what it takes it for.
        let context = catch_unwind(AssertUnwindSafe(|| tracing_opentelemetry::get_otel_context(id, &dispatch)));
        let context = context.ok()??.span().span_context().clone();
        (context.is_valid() && context.is_sampled()).then_some(context)
    }
}

/// An engine's part: the copy in flight, and the one that has ended in a step that is not left yet.
///
/// The mutex is only ever tried. A span that two threads fight over is dropped; the counting never depends on it.
#[derive(Debug, Default)]
pub(crate) struct EngineTrace {
    /// Some step's context is wanted at its exit.
    wants_context: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A step that starts a copy when it closes, if it is the next to close.
    starts_at_close: Option<Visitor>,
    flight: Option<(Visitor, SystemTime)>,
    ended: Option<(u64, Collected)>,
}

impl State {
    fn wants_context(&self) -> bool {
        let awaits = |(step, _): &(Visitor, SystemTime)| step.context.is_none();
        self.ended.is_some() || self.starts_at_close.is_some() || self.flight.as_ref().is_some_and(awaits)
    }
}

/// A step and, once it was left, its context.
#[derive(Debug)]
struct Visitor {
    id: u64,
    context: Option<SpanContext>,
}

impl Visitor {
    fn awaited(id: u64) -> Self {
        Self { id, context: None }
    }

    fn awaits(&self, id: u64) -> bool {
        self.id == id && self.context.is_none()
    }
}

/// What a collection came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) reason: Reason,
    /// What the sample added to the counters.
    pub(crate) amounts: Amounts,
    /// Whether its quantities belong together, so that they can be divided.
    pub(crate) has_rates: bool,
}

impl EngineTrace {
    fn state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The step that this thread is in starts a copy when it closes.
    pub(crate) fn starts_at_close(&self) {
        let id = STEP.get();
        if id != 0
            && let Some(mut state) = self.state()
        {
            state.starts_at_close = Some(Visitor::awaited(id));
            self.wants_context.store(true, Ordering::Relaxed);
        }
    }

    /// A copy has started, in the step that this thread is in.
    pub(crate) fn started(&self) {
        let id = STEP.get();
        let Some(mut state) = self.state() else { return };
        let known = state.starts_at_close.take().filter(|step| step.id == id);
        state.flight = (id != 0).then(|| (known.unwrap_or(Visitor::awaited(id)), SystemTime::now()));
        self.wants_context.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// The copy in flight has ended. Its span waits for the step that this thread is in to be left, for the link.
    pub(crate) fn trace_end(&self, ended: &Ended, shared: &Shared) {
        let Some(tracing) = &shared.tracing else { return };
        let Some(mut state) = self.trace.state() else { return };
        let Some((Visitor { context: Some(parent), .. }, start)) = state.flight.take() else { return };
        let collected = Collected::new(self, parent, start, ended);
        if let Some((_, earlier)) = state.ended.take() {
            tracing.outbox.put(earlier);
        }
        match STEP.get() {
            0 => tracing.outbox.put(collected),
            id => {
                state.ended = Some((id, collected));
                self.trace.wants_context.store(true, Ordering::Relaxed);
            }
        }
    }

    /// A step is left: the one moment at which its context can be taken.
    #[cold]
    fn trace_exit(&self, id: &Id, tracing: &Tracing) {
        let Some(mut state) = self.trace.state() else { return };
        let key = id.into_u64();
        let state = &mut *state;
        let ended_here = state.ended.take_if(|(resolver, _)| *resolver == key);
        let starter = state.flight.as_mut().map(|(step, _)| step).filter(|step| step.awaits(key));
        let starter = starter.or(state.starts_at_close.as_mut().filter(|step| step.awaits(key)));
        if ended_here.is_some() || starter.is_some() {
            let context = tracing.context_of(id);
            if let Some((_, mut collected)) = ended_here {
                collected.link = context.clone();
                tracing.outbox.put(collected);
            }
            if let Some(starter) = starter {
                starter.context = context;
            }
        }
        self.trace.wants_context.store(state.wants_context(), Ordering::Relaxed);
    }

    /// A step is closed: nothing is to be had of it any more, and its id may come back.
    #[cold]
    fn trace_close(&self, id: &Id, tracing: &Tracing) {
        let Some(mut state) = self.trace.state() else { return };
        let key = id.into_u64();
        if let Some((_, collected)) = state.ended.take_if(|(resolver, _)| *resolver == key) {
            tracing.outbox.put(collected);
        }
        state.flight.take_if(|(step, _)| step.awaits(key));
        state.starts_at_close.take_if(|step| step.id == key);
        self.trace.wants_context.store(state.wants_context(), Ordering::Relaxed);
    }
}

impl Shared {
    /// What makes collect spans, where there may be copies.
    #[inline]
    pub(crate) fn tracing_copies(&self) -> Option<&Tracing> {
        self.tracing.as_ref().filter(|_| self.has_sources())
    }

    pub(crate) fn engine_of(&self, slot: &Slot) -> Option<&Engine> {
        self.engines.get(slot.engine.load(Ordering::Relaxed))
    }

    /// Gives the tracer all spans whose copies have ended, also those in a step that is not left yet.
    pub(crate) fn flush_traces(&self, deadline: Option<Instant>) {
        let Some(tracing) = &self.tracing else { return };
        for engine in self.engines.iter() {
            if let Some(mut state) = engine.trace.state()
                && let Some((_, collected)) = state.ended.take()
            {
                tracing.outbox.put(collected);
            }
        }
        tracing.outbox.flush(deadline);
    }
}
