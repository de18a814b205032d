//! The layer and its filter: span callbacks, nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayString;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::callsites::{Callsite, Callsites, FieldCodes};
use crate::current;
use crate::open_steps::{Misuses, NewStep, Slot};
use crate::phases::Phase;
use crate::shared::{Kind, Shared};
use crate::step::DEFAULT_ENGINE;
#[cfg(feature = "otel-trace")]
use crate::trace::InStep;
use crate::visitor::{MAX_ENGINE_NAME, Reader, StepVisitor};

/// The layer, already filtered: it is shown `spec_decode_step` spans and nothing else.
pub type SpecDecodeLayer<S> = Filtered<StepLayer, StepFilter, S>;

/// What [`SpecDecodeLayer`] does with a span.
#[derive(Debug)]
pub struct StepLayer(pub(crate) Arc<Shared>);

/// Which spans [`SpecDecodeLayer`] is shown.
///
/// The answer for other callsites is `never`, so that they cost nothing; for ours it is `sometimes` and not `always`,
/// since a cached `always` was seen to lose spans when another filter is asked about a `log` record in between.
#[derive(Debug)]
pub struct StepFilter(pub(crate) Arc<Shared>);

impl StepFilter {
    #[inline(never)]
    fn kind_of(&self, metadata: &Metadata<'_>) -> Option<Kind> {
        if self.0.counts && metadata.is_span() { self.0.kind_of(metadata.name()) } else { None }
    }
}

impl<S: Subscriber> Filter<S> for StepFilter {
    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.0.callsites.knows(metadata) || self.kind_of(metadata).is_some()
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.kind_of(metadata) {
            Some(Kind::Step) => self.0.callsites.register(metadata, None),
            Some(Kind::Phase(phase)) => {
                self.0.has_phases.store(true, Ordering::Relaxed);
                self.0.callsites.register(metadata, Some(phase));
            }
            None => return Interest::never(),
        }
        Interest::sometimes()
    }
}

impl<S> Layer<S> for StepLayer
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    #[cfg(feature = "otel-trace")]
    fn on_register_dispatch(&self, dispatch: &tracing::Dispatch) {
        if let Some(tracing) = &self.0.tracing {
            tracing.register(dispatch);
        }
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let shared = &*self.0;
        match shared.callsites.find(attributes.metadata()) {
            Some((place, callsite)) => match callsite.phase {
                None => {
                    let origin = Origin { shared, callsite: Some(callsite), place };
                    shared.open_step(attributes, id, &callsite.codes, &origin);
                }
                Some(phase) => self.open_phase(phase, attributes, id, &context),
            },
            None => self.open_by_name(attributes, id, &context),
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let shared = &*self.0;
        let Some((_, slot)) = shared.steps.find(id.into_u64()) else { return };
        match shared.callsites.get(slot.callsite.load(Ordering::Relaxed)) {
            Some(callsite) => values.record(&mut StepVisitor { codes: &callsite.codes, reader: Late(slot) }),
            None => record_by_name(context.metadata(id), values, slot),
        }
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        let shared = &*self.0;
        let Some((_, slot)) = shared.steps.find(id.into_u64()) else { return shared.enter_phase(id.into_u64()) };
        if shared.has_phases.load(Ordering::Relaxed) {
            current::enter(shared.address(), id.into_u64());
        }
        let before = slot.enter();
        if !before.ever_entered() {
            slot.start_at(shared.ticks.now());
        }
        if shared.has_flights() || shared.has_timed_sources() || before.ever_entered() {
            #[cfg(feature = "otel-trace")]
            let _in_step = shared.tracing_copies().map(|_| InStep::new(id));
            shared.entered(slot, before);
        }
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        let shared = &*self.0;
        if shared.has_phases.load(Ordering::Relaxed) {
            current::exit(shared.address(), id.into_u64());
        }
        match shared.steps.find(id.into_u64()) {
            Some((_, slot)) if shared.has_sources() => {
                #[cfg(feature = "otel-trace")]
                if let Some((tracing, engine)) = shared.tracing_copies().zip(shared.engine_of(slot)) {
                    return tracing.exited(id, engine, || shared.exited(slot));
                }
                shared.exited(slot);
            }
            Some((_, slot)) => {
                slot.end_at(shared.ticks.now());
                slot.exit();
            }
            None => shared.exit_phase(id.into_u64()),
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let shared = &*self.0;
        let Some((index, slot)) = shared.steps.find(id.into_u64()) else { return shared.close_phase(id.into_u64()) };
        match shared.engines.get(slot.engine.load(Ordering::Relaxed)) {
            Some(engine) => {
                #[cfg(feature = "otel-trace")]
                if let Some(tracing) = shared.tracing_copies() {
                    return tracing.closed(&id, engine, || engine.closed(index, slot, shared));
                }
                engine.closed(index, slot, shared);
            }
            None => slot.free(),
        }
    }
}

impl StepLayer {
    /// A span of a callsite that there was no room for.
    #[cold]
    fn open_by_name<S>(&self, attributes: &Attributes<'_>, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let shared = &*self.0;
        match shared.kind_of(attributes.metadata().name()) {
            Some(Kind::Phase(phase)) => self.open_phase(phase, attributes, id, context),
            Some(Kind::Step) | None => {
                let codes = FieldCodes::of(attributes.metadata().fields());
                let origin = Origin { shared, callsite: None, place: Callsites::UNKNOWN };
                shared.open_step(attributes, id, &codes, &origin);
            }
        }
    }

    /// A phase belongs to the step that is its parent, or the nearest of ours around it.
    #[inline(never)]
    fn open_phase<S>(&self, phase: Phase, attributes: &Attributes<'_>, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let shared = &*self.0;
        let is_step = |parent: &u64| shared.steps.find(*parent).is_some();
        let step = match attributes.parent() {
            Some(parent) => Some(parent.into_u64()),
            None if attributes.is_contextual() => {
                current::step(shared.address()).or_else(|| Some(context.lookup_current()?.id().into_u64()))
            }
            None => None,
        };
        let step = step.filter(is_step);
        if let Some(step) = step {
            shared.phases.open(id.into_u64(), phase, step);
        }
    }
}

/// Most names are a few bytes long: comparing those costs less than the call that compares any.
#[inline]
fn is_same(one: &str, other: &str) -> bool {
    const SHORT: usize = 8;
    if one.len() != other.len() {
        return false;
    }
    if one.len() > SHORT {
        return one == other;
    }
    one.bytes().zip(other.bytes()).all(|(one, other)| one == other)
}

/// Records to a step whose callsite there was no room for.
#[cold]
fn record_by_name(metadata: Option<&Metadata<'_>>, values: &Record<'_>, slot: &Slot) {
    if let Some(metadata) = metadata {
        values.record(&mut StepVisitor { codes: &FieldCodes::of(metadata.fields()), reader: Late(slot) });
    }
}

impl Shared {
    #[inline]
    fn open_step(&self, attributes: &Attributes<'_>, id: &Id, codes: &FieldCodes, origin: &Origin<'_>) {
        let id = id.into_u64();
        let Some(slot) = self.steps.claim(id) else {
            return self.count_lost(attributes, codes);
        };
        let step = NewStep::new(slot, id);
        let reader = New { origin, step, invalid: 0, engine: Naming::None, name: ArrayString::new(), rank: 0 };
        let mut visitor = StepVisitor { codes, reader };
        attributes.record(&mut visitor);
        visitor.reader.open();
    }

    /// There is no room for one more open step. One of another rank is no loss.
    #[cold]
    fn count_lost(&self, attributes: &Attributes<'_>, codes: &FieldCodes) {
        let mut visitor = StepVisitor { codes, reader: RankOnly(0) };
        attributes.record(&mut visitor);
        if visitor.reader.0 == 0 {
            self.open_steps_over_bound.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Where a new span comes from.
struct Origin<'a> {
    shared: &'a Shared,
    callsite: Option<&'a Callsite>,
    place: u32,
}

/// Reads the fields of a new span, and looks its engine up while its name is at hand.
struct New<'a> {
    origin: &'a Origin<'a>,
    step: NewStep<'a>,
    invalid: u32,
    engine: Naming,
    /// The name of an engine that is not known yet, and will not be if the step turns out to be of another rank.
    name: ArrayString<MAX_ENGINE_NAME>,
    rank: u32,
}

#[derive(Clone, Copy)]
enum Naming {
    None,
    Refused,
    /// The index of an engine that is known.
    Engine(u32),
    /// Not known yet: see [`New::name`].
    New,
}

impl New<'_> {
    /// Opens the step, if it is one that counts.
    #[inline]
    fn open(&self) {
        let default = self.origin.shared.default_engine.load(Ordering::Relaxed);
        match self.engine {
            Naming::Engine(engine) if self.rank == 0 => self.step.open(engine, self.origin.place, self.invalid),
            Naming::None if self.rank == 0 && default != u32::MAX => {
                self.step.open(default, self.origin.place, self.invalid);
            }
            _ => self.open_first_or_refuse(),
        }
    }

    /// The first step of an engine, one of another rank, or one whose engine is refused.
    #[cold]
    fn open_first_or_refuse(&self) {
        if self.rank != 0 {
            return self.step.abandon();
        }
        let shared = self.origin.shared;
        let engine = match self.engine {
            Naming::None => shared.engines.find_or_add(DEFAULT_ENGINE).ok(),
            Naming::New => shared.engines.find_or_add(&self.name).ok(),
            Naming::Engine(_) | Naming::Refused => None,
        };
        let Some(engine) = engine else {
            shared.engine_refused.fetch_add(1, Ordering::Relaxed);
            return self.step.abandon();
        };
        if let Naming::None = self.engine {
            shared.default_engine.store(engine.index, Ordering::Relaxed);
        } else if let Some(callsite) = self.origin.callsite {
            callsite.remember_engine(engine.index);
        }
        self.step.open(engine.index, self.origin.place, self.invalid);
    }

    /// The engine of the callsite's last span is most often that of the next.
    #[inline]
    fn look_up(&mut self, name: &str) {
        let Origin { shared, callsite, .. } = *self.origin;
        let last = callsite.and_then(|callsite| shared.engines.get(callsite.last_engine()));
        match last {
            Some(engine) if is_same(&engine.name, name) => self.engine = Naming::Engine(engine.index),
            _ => self.look_up_anew(name),
        }
    }

    #[inline(never)]
    fn look_up_anew(&mut self, name: &str) {
        self.engine = match self.origin.shared.engines.find(name) {
            Some(engine) => {
                if let Some(callsite) = self.origin.callsite {
                    callsite.remember_engine(engine.index);
                }
                Naming::Engine(engine.index)
            }
            None => {
                self.name.clear();
                self.name.try_push_str(name).map_or(Naming::Refused, |()| Naming::New)
            }
        };
    }
}

impl Reader for New<'_> {
    #[inline]
    fn number(&mut self, index: usize, value: u32) {
        self.step.set(index, value);
    }

    fn refuse_number(&mut self, _index: usize) {
        self.invalid = self.invalid.saturating_add(1);
    }

    #[inline]
    fn engine(&mut self, name: Option<&str>) {
        match name {
            Some(name) => self.look_up(name),
            None => self.engine = Naming::Refused,
        }
    }

    fn wants_engine(&self) -> bool {
        true
    }

    fn rank(&mut self, rank: Option<u32>) {
        match rank {
            Some(rank) => self.rank = rank,
            None => self.invalid = self.invalid.saturating_add(1),
        }
    }
}

/// Reads the rank and nothing else.
struct RankOnly(u32);

impl Reader for RankOnly {
    fn number(&mut self, _index: usize, _value: u32) {}

    fn refuse_number(&mut self, _index: usize) {}

    fn engine(&mut self, _name: Option<&str>) {}

    fn wants_engine(&self) -> bool {
        false
    }

    fn rank(&mut self, rank: Option<u32>) {
        self.0 = rank.unwrap_or_default();
    }
}

/// Reads what is recorded after the span was made: what comes now is too late for an identity.
struct Late<'a>(&'a Slot);

impl Reader for Late<'_> {
    #[inline]
    fn number(&mut self, index: usize, value: u32) {
        self.0.set(index, value);
    }

    fn refuse_number(&mut self, index: usize) {
        self.0.clear(index);
        self.0.misused(Misuses { invalid: 1, late_identity: 0 });
    }

    fn engine(&mut self, _name: Option<&str>) {
        self.0.misused(Misuses { invalid: 0, late_identity: 1 });
    }

    fn wants_engine(&self) -> bool {
        false
    }

    fn rank(&mut self, _rank: Option<u32>) {
        self.0.misused(Misuses { invalid: 0, late_identity: 1 });
    }
}
