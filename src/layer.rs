//! The layer and its filter: span callbacks, nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::Filtered;
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::callsites::{Callsites, FieldCodes};
use crate::current;
use crate::phases::Phase;
use crate::readers::{Late, Origin};
use crate::shared::{Kind, Shared};
use crate::slot::Slot;
#[cfg(feature = "otel-trace")]
use crate::trace::InStep;
use crate::visitor::StepVisitor;

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
                slot.exit_and_end(|| shared.ticks.now());
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

/// Records to a step whose callsite there was no room for.
#[cold]
fn record_by_name(metadata: Option<&Metadata<'_>>, values: &Record<'_>, slot: &Slot) {
    if let Some(metadata) = metadata {
        values.record(&mut StepVisitor { codes: &FieldCodes::of(metadata.fields()), reader: Late(slot) });
    }
}
