//! The layer and its filter: span callbacks, nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::callsites::{Callsite, Callsites, FieldCodes};
use crate::engine::Engine;
use crate::open_steps::{Misuses, Slot};
use crate::shared::Shared;
use crate::step::{DEFAULT_ENGINE, Fields};
use crate::visitor::{Reader, StepVisitor};

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
    fn is_ours(&self, metadata: &Metadata<'_>) -> bool {
        self.0.counts && metadata.is_span() && metadata.name() == &*self.0.span_name
    }
}

impl<S: Subscriber> Filter<S> for StepFilter {
    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.0.callsites.find(metadata).is_some() || self.is_ours(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.is_ours(metadata) {
            self.0.callsites.register(metadata);
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }
}

impl<S> Layer<S> for StepLayer
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let shared = &*self.0;
        match shared.callsites.find(attributes.metadata()) {
            Some((place, callsite)) => {
                shared.open_step(attributes, id, &callsite.codes, Origin { shared, callsite: Some(callsite), place });
            }
            None => {
                let codes = FieldCodes::of(attributes.metadata().fields());
                shared.open_step(attributes, id, &codes, Origin { shared, callsite: None, place: Callsites::UNKNOWN });
            }
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let shared = &*self.0;
        let Some((_, slot)) = shared.steps.find(id.into_u64()) else { return };
        match shared.callsites.get(slot.callsite.load(Ordering::Relaxed)) {
            Some(callsite) => values.record(&mut StepVisitor { codes: &callsite.codes, reader: Late(slot) }),
            None => {
                let Some(metadata) = context.metadata(id) else { return };
                let codes = FieldCodes::of(metadata.fields());
                values.record(&mut StepVisitor { codes: &codes, reader: Late(slot) });
            }
        }
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        let shared = &*self.0;
        let Some((_, slot)) = shared.steps.find(id.into_u64()) else { return };
        if let Some(engine) = shared.engines.get(slot.engine.load(Ordering::Relaxed)) {
            engine.entered(slot, shared);
        }
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        let shared = &*self.0;
        let Some((_, slot)) = shared.steps.find(id.into_u64()) else { return };
        if let Some(engine) = shared.engines.get(slot.engine.load(Ordering::Relaxed)) {
            engine.exited(slot, shared);
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let shared = &*self.0;
        let Some((index, slot)) = shared.steps.find(id.into_u64()) else { return };
        match shared.engines.get(slot.engine.load(Ordering::Relaxed)) {
            Some(engine) => engine.closed(index, slot, shared),
            None => shared.steps.free(index),
        }
    }
}

impl Shared {
    #[inline]
    fn open_step(&self, attributes: &Attributes<'_>, id: &Id, codes: &FieldCodes, origin: Origin<'_>) {
        let reader = New { origin, fields: Fields::default(), invalid: 0, engine: Naming::None, rank: 0 };
        let mut visitor = StepVisitor { codes, reader };
        attributes.record(&mut visitor);
        let new = visitor.reader;
        if new.rank != 0 {
            return;
        }
        let Some(engine) = new.named_engine() else {
            self.engine_refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        match self.steps.claim(id.into_u64()) {
            Some(step) => step.open(engine.index, origin.place, &new.fields, new.invalid),
            None => {
                self.open_steps_over_bound.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Where a new span comes from.
#[derive(Clone, Copy)]
struct Origin<'a> {
    shared: &'a Shared,
    callsite: Option<&'a Callsite>,
    place: u32,
}

/// Reads the fields of a new span, and looks its engine up while its name is at hand.
struct New<'a> {
    origin: Origin<'a>,
    fields: Fields,
    invalid: u32,
    engine: Naming<'a>,
    rank: u32,
}

#[derive(Clone, Copy)]
enum Naming<'a> {
    None,
    Refused,
    Engine(&'a Engine),
}

impl<'a> New<'a> {
    #[inline]
    fn named_engine(&self) -> Option<&'a Engine> {
        match self.engine {
            Naming::Engine(engine) => Some(engine),
            Naming::None => self.look_up(DEFAULT_ENGINE),
            Naming::Refused => None,
        }
    }

    /// The engine of the callsite's last span is most often that of the next.
    #[inline]
    fn look_up(&self, name: &str) -> Option<&'a Engine> {
        let Origin { shared, callsite, .. } = self.origin;
        let last = callsite.and_then(|callsite| shared.engines.get(callsite.last_engine()));
        match last {
            Some(engine) if &*engine.name == name => Some(engine),
            _ => self.look_up_anew(name),
        }
    }

    #[inline(never)]
    fn look_up_anew(&self, name: &str) -> Option<&'a Engine> {
        let engine = self.origin.shared.engines.find_or_add(name).ok()?;
        if let Some(callsite) = self.origin.callsite {
            callsite.remember_engine(engine.index);
        }
        Some(engine)
    }
}

impl Reader for New<'_> {
    #[inline]
    fn number(&mut self, index: usize, value: u32) {
        self.fields.set(index, value);
    }

    fn refuse_number(&mut self, _index: usize) {
        self.invalid = self.invalid.saturating_add(1);
    }

    #[inline]
    fn engine(&mut self, name: Option<&str>) {
        self.engine = name.and_then(|name| self.look_up(name)).map_or(Naming::Refused, Naming::Engine);
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
