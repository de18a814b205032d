//! What is known of a callsite before its first span: which of its fields are ours, by index.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use tracing::Metadata;
use tracing::field::FieldSet;

use crate::step::{Count, ENGINE, RANK};

/// What a field means to us, in four bits.
pub(crate) mod code {
    use super::Count;

    /// Not ours. The numbers' codes are their index plus one.
    pub(crate) const OTHER: u8 = 0;
    pub(crate) const ENGINE: u8 = Count::COUNT as u8 + 1;
    pub(crate) const RANK: u8 = Count::COUNT as u8 + 2;
}

/// The codes of a callsite's fields, by field index, so that no name is compared when a span is made. tracing's macros
/// allow 32 fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FieldCodes([u64; 2]);

impl FieldCodes {
    const PER_WORD: usize = 16;

    pub(crate) fn of(fields: &FieldSet) -> Self {
        let mut codes = Self::default();
        for field in fields {
            let code = match field.name() {
                ENGINE => code::ENGINE,
                RANK => code::RANK,
                name => Count::NAMES
                    .iter()
                    .zip(1..)
                    .find_map(|(&count, code)| (count == name).then_some(code))
                    .unwrap_or(code::OTHER),
            };
            if let Some(word) = codes.0.get_mut(field.index() / Self::PER_WORD) {
                *word |= u64::from(code) << Self::shift(field.index());
            }
        }
        codes
    }

    #[inline]
    pub(crate) fn get(self, index: usize) -> u8 {
        let word = self.0.get(index / Self::PER_WORD).copied().unwrap_or_default();
        (word >> Self::shift(index)) as u8 & 0xf
    }

    #[inline]
    const fn shift(index: usize) -> u32 {
        ((index % Self::PER_WORD) as u32).wrapping_mul(4)
    }
}

/// A callsite of ours.
#[derive(Debug)]
pub(crate) struct Callsite {
    /// The address of its metadata, which is static; 0 while the entry is free.
    metadata: AtomicUsize,
    codes: [AtomicU64; 2],
    /// The engine of its last span, as the engines' table counts them.
    last_engine: AtomicU32,
}

impl Callsite {
    const fn vacant() -> Self {
        Self {
            metadata: AtomicUsize::new(0),
            codes: [const { AtomicU64::new(0) }; 2],
            last_engine: AtomicU32::new(u32::MAX),
        }
    }

    #[inline]
    pub(crate) fn codes(&self) -> FieldCodes {
        FieldCodes([self.codes[0].load(Ordering::Relaxed), self.codes[1].load(Ordering::Relaxed)])
    }

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
pub(crate) struct Callsites([Callsite; Self::ROOM]);

impl Callsites {
    const ROOM: usize = 32;
    /// An entry that somebody is filling in.
    const CLAIMED: usize = usize::MAX;

    pub(crate) const fn new() -> Self {
        Self([const { Callsite::vacant() }; Self::ROOM])
    }

    /// Prepares a callsite of ours, once.
    pub(crate) fn register(&self, metadata: &'static Metadata<'static>) {
        if self.find(metadata).is_some() {
            return;
        }
        let codes = FieldCodes::of(metadata.fields());
        for callsite in &self.0 {
            let claim =
                callsite.metadata.compare_exchange(0, Self::CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if claim {
                callsite.codes[0].store(codes.0[0], Ordering::Relaxed);
                callsite.codes[1].store(codes.0[1], Ordering::Relaxed);
                callsite.metadata.store(address(metadata), Ordering::Release);
                return;
            }
        }
    }

    #[inline]
    pub(crate) fn find(&self, metadata: &'static Metadata<'static>) -> Option<&Callsite> {
        let wanted = address(metadata);
        for callsite in &self.0 {
            match callsite.metadata.load(Ordering::Acquire) {
                found if found == wanted => return Some(callsite),
                0 => return None,
                _ => {}
            }
        }
        None
    }

    /// The entry with this index, as [`Self::index_of`] gave it.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Callsite> {
        self.0.get(index as usize)
    }

    /// Where a callsite's entry is; past the end if it has none.
    #[inline]
    pub(crate) fn index_of(&self, metadata: &'static Metadata<'static>) -> u32 {
        let wanted = address(metadata);
        for (callsite, index) in self.0.iter().zip(0..) {
            match callsite.metadata.load(Ordering::Acquire) {
                found if found == wanted => return index,
                0 => break,
                _ => {}
            }
        }
        u32::MAX
    }
}

fn address(metadata: &'static Metadata<'static>) -> usize {
    std::ptr::from_ref(metadata).addr()
}
