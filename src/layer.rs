//! The layer and its filter: span callbacks, nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::callsites::{Callsite, FieldCodes};
use crate::engine::Engine;
use crate::shared::Shared;
use crate::step::DEFAULT_ENGINE;
use crate::visitor::{Identity, Late, StepVisitor};

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
    #[inline]
    fn is_ours(&self, metadata: &Metadata<'_>) -> bool {
        self.0.counts && metadata.is_span() && metadata.name() == &*self.0.span_name
    }
}

impl<S: Subscriber> Filter<S> for StepFilter {
    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.is_ours(metadata)
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
        let metadata = attributes.metadata();
        let place = shared.callsites.index_of(metadata);
        let callsite = shared.callsites.get(place);
        let codes = callsite.map_or_else(|| FieldCodes::of(metadata.fields()), Callsite::codes);
        let identity = Found { shared, callsite, engine: Naming::None, rank: 0 };
        let mut visitor = StepVisitor::new(codes, identity);
        attributes.record(&mut visitor);
        if visitor.identity.rank != 0 {
            return;
        }
        let Some(engine) = visitor.identity.engine() else {
            shared.engine_refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        match shared.steps.claim(id.into_u64()) {
            Some(step) => step.open(engine.index, place, &visitor.fields, visitor.invalid),
            None => {
                shared.open_steps_over_bound.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let shared = &*self.0;
        let Some((_, slot)) = shared.steps.find(id.into_u64()) else { return };
        let codes = match shared.callsites.get(slot.callsite.load(Ordering::Relaxed)) {
            Some(callsite) => callsite.codes(),
            None => context.metadata(id).map(|metadata| FieldCodes::of(metadata.fields())).unwrap_or_default(),
        };
        let mut visitor = StepVisitor::new(codes, Late::default());
        values.record(&mut visitor);
        slot.record(&visitor.fields, visitor.refused);
        if visitor.invalid | visitor.identity.count != 0 {
            slot.invalid.fetch_add(visitor.invalid, Ordering::Relaxed);
            slot.late_identity.fetch_add(visitor.identity.count, Ordering::Relaxed);
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

/// The engine that a new span names, looked up while its name is at hand.
struct Found<'a> {
    shared: &'a Shared,
    callsite: Option<&'a Callsite>,
    engine: Naming<'a>,
    rank: u32,
}

#[derive(Clone, Copy)]
enum Naming<'a> {
    None,
    Refused,
    Engine(&'a Engine),
}

impl<'a> Found<'a> {
    #[inline]
    fn engine(&self) -> Option<&'a Engine> {
        match self.engine {
            Naming::Engine(engine) => Some(engine),
            Naming::None => self.look_up(DEFAULT_ENGINE),
            Naming::Refused => None,
        }
    }

    /// The engine of the callsite's last span is most often that of the next.
    #[inline]
    fn look_up(&self, name: &str) -> Option<&'a Engine> {
        let last = self.callsite.and_then(|callsite| self.shared.engines.get(callsite.last_engine()));
        if let Some(engine) = last
            && &*engine.name == name
        {
            return Some(engine);
        }
        let engine = self.shared.engines.find_or_add(name).ok()?;
        if let Some(callsite) = self.callsite {
            callsite.remember_engine(engine.index);
        }
        Some(engine)
    }
}

impl Identity for Found<'_> {
    #[inline]
    fn engine(&mut self, name: Option<&str>) {
        self.engine = name.and_then(|name| self.look_up(name)).map_or(Naming::Refused, Naming::Engine);
    }

    fn wants_engine(&self) -> bool {
        true
    }

    fn rank(&mut self, rank: u32) {
        self.rank = rank;
    }
}
