//! The bounded set of engines, found by name without a lock.

use std::hash::Hasher;

use once_cell::race::OnceBox;
use rustc_hash::FxHasher;

use crate::attributes::EngineAttributes;
use crate::engine::Engine;
use crate::visitor::is_engine_name;

/// A table with a place for each engine that there may be. Engines are added and never removed.
#[derive(Debug)]
pub(crate) struct Engines {
    places: Box<[OnceBox<Entry>]>,
    positions: usize,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    engine: Engine,
}

/// Why an engine could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Name,
    Full,
}

impl Engines {
    pub(crate) fn new(bound: usize, positions: usize) -> Self {
        Self { places: (0..bound).map(|_| OnceBox::new()).collect(), positions }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Engine> {
        self.places.get(index as usize)?.get().map(|entry| &entry.engine)
    }

    /// The engine of this name, if it is known.
    pub(crate) fn find(&self, name: &str) -> Option<&Engine> {
        let hash = hash(name);
        for index in self.probe(hash) {
            let entry = self.places.get(index)?.get()?;
            if entry.hash == hash && &*entry.engine.name == name {
                return Some(&entry.engine);
            }
        }
        None
    }

    /// The engine of this name, added without attributes if it is new.
    pub(crate) fn find_or_add(&self, name: &str) -> Result<&Engine, Refused> {
        match self.find(name) {
            Some(engine) => Ok(engine),
            None => self.add(name, EngineAttributes::default()).map(|(engine, _)| engine),
        }
    }

    /// The engine of this name, and whether this call has added it, with these attributes.
    #[cold]
    pub(crate) fn add(&self, name: &str, attributes: EngineAttributes) -> Result<(&Engine, bool), Refused> {
        if !is_engine_name(name) {
            return Err(Refused::Name);
        }
        let hash = hash(name);
        for index in self.probe(hash) {
            let Some(place) = self.places.get(index) else { break };
            let added = place.get().is_none() && {
                let engine = Engine::new(index as u32, name, attributes.clone(), self.positions);
                place.set(Box::new(Entry { hash, engine })).is_ok()
            };
            if let Some(entry) = place.get()
                && entry.hash == hash
                && &*entry.engine.name == name
            {
                return Ok((&entry.engine, added));
            }
        }
        Err(Refused::Full)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Engine> {
        self.places.iter().filter_map(|place| Some(&place.get()?.engine))
    }

    /// The places to look at for a hash: from its own on, round the whole table.
    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let bound = self.places.len();
        let home = (u128::from(hash).wrapping_mul(bound as u128) >> 64) as usize;
        (home..bound).chain(0..home)
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name.as_bytes());
    hasher.finish()
}
