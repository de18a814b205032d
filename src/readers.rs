//! Who reads the fields of a step: of a new span, of one that there is no room for, and what is recorded later.

use std::sync::atomic::Ordering;

use arrayvec::ArrayString;
use tracing::span::{Attributes, Id};

use crate::callsites::{Callsite, FieldCodes};
use crate::shared::Shared;
use crate::slot::{Misuses, NewStep, Slot};
use crate::step::DEFAULT_ENGINE;
use crate::visitor::{MAX_ENGINE_NAME, Reader, StepVisitor};

impl Shared {
    #[inline]
    pub(crate) fn open_step(&self, attributes: &Attributes<'_>, id: &Id, codes: &FieldCodes, origin: &Origin<'_>) {
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
pub(crate) struct Origin<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) callsite: Option<&'a Callsite>,
    pub(crate) place: u32,
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
pub(crate) struct Late<'a>(pub(crate) &'a Slot);

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
