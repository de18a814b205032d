//! What is known of a callsite before its first span: which of its fields are ours, by index.

use std::sync::atomic::{AtomicU32, Ordering};

use once_cell::race::OnceBox;
use tracing::Metadata;
use tracing::field::FieldSet;

use crate::phases::Phase;
use crate::step::{Count, ENGINE, RANK};

/// What a field means to us.
pub(crate) mod code {
    use super::Count;

    /// The numbers' codes are their indices.
    pub(crate) const ENGINE: u8 = Count::COUNT as u8;
    pub(crate) const RANK: u8 = ENGINE + 1;
    /// Not ours.
    pub(crate) const OTHER: u8 = RANK + 1;
}

/// The codes of a callsite's fields, by field index, so that no name is compared when a span is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldCodes([u8; Self::ROOM]);

impl FieldCodes {
    /// Fields beyond these are not looked at; tracing's macros have allowed 32.
    const ROOM: usize = 64;

    pub(crate) fn of(fields: &FieldSet) -> Self {
        let mut codes = [code::OTHER; Self::ROOM];
        for (code, field) in codes.iter_mut().zip(fields) {
            *code = match field.name() {
                ENGINE => code::ENGINE,
                RANK => code::RANK,
                name => (0..)
                    .zip(Count::NAMES)
                    .find_map(|(code, count)| (count == name).then_some(code))
                    .unwrap_or(code::OTHER),
            };
        }
        Self(codes)
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> u8 {
        self.0.get(index).copied().unwrap_or(code::OTHER)
    }
}

/// A callsite of ours.
#[derive(Debug)]
pub(crate) struct Callsite {
    /// The address of its metadata, which is static.
    metadata: usize,
    /// The phase that its spans are; `None` for a step.
    pub(crate) phase: Option<Phase>,
    pub(crate) codes: FieldCodes,
    /// The engine of its last span, as the engines' table counts them.
    last_engine: AtomicU32,
}

impl Callsite {
    #[inline]
    pub(crate) fn last_engine(&self) -> u32 {
        self.last_engine.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn remember_engine(&self, engine: u32) {
        self.last_engine.store(engine, Ordering::Relaxed);
    }
}

/// The callsites that have been registered. A program has few of ours; those beyond the room are looked up by name.
#[derive(Debug)]
pub(crate) struct Callsites([OnceBox<Callsite>; Self::ROOM]);

impl Callsites {
    const ROOM: usize = 32;

    pub(crate) const fn new() -> Self {
        Self([const { OnceBox::new() }; Self::ROOM])
    }

    /// Prepares a callsite of ours, once.
    pub(crate) fn register(&self, metadata: &'static Metadata<'static>, phase: Option<Phase>) {
        for place in &self.0 {
            let callsite = place.get_or_init(|| {
                Box::new(Callsite {
                    metadata: address(metadata),
                    phase,
                    codes: FieldCodes::of(metadata.fields()),
                    last_engine: AtomicU32::new(u32::MAX),
                })
            });
            if callsite.metadata == address(metadata) {
                return;
            }
        }
    }

    /// Whether this callsite has been registered.
    #[inline]
    pub(crate) fn knows(&self, metadata: &Metadata<'_>) -> bool {
        self.find(metadata).is_some()
    }

    /// A callsite and its place, for a slot to remember.
    #[inline(always)]
    pub(crate) fn find(&self, metadata: &Metadata<'_>) -> Option<(u32, &Callsite)> {
        let first = self.0.first()?.get()?;
        if first.metadata == address(metadata) { Some((0, first)) } else { self.find_beyond(metadata) }
    }

    /// The first is most often the step's; those of its phases are here.
    #[inline(never)]
    fn find_beyond(&self, metadata: &Metadata<'_>) -> Option<(u32, &Callsite)> {
        for (place, index) in self.0.iter().zip(0..).skip(1) {
            let callsite = place.get()?;
            if callsite.metadata == address(metadata) {
                return Some((index, callsite));
            }
        }
        None
    }

    /// The callsite at a place; `None` at [`Self::UNKNOWN`].
    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&Callsite> {
        self.0.get(place as usize)?.get()
    }

    /// The place of a callsite that there was no room for.
    pub(crate) const UNKNOWN: u32 = u32::MAX;
}

fn address(metadata: &Metadata<'_>) -> usize {
    std::ptr::from_ref(metadata).addr()
}
