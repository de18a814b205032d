//! What the fields of an engine's steps add up to between two samples of its source.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::published::count;
use crate::quantity::{Amounts, Quantities, Quantity};
use crate::step::Step;

/// The sum of some steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) amounts: Amounts,
    /// Some of them had drafts.
    pub(crate) drafted: bool,
    /// Quantities that some step with drafts did not give.
    pub(crate) missing: Quantities,
    /// Quantities that some step gave in contradiction to another.
    pub(crate) contradicted: Quantities,
    /// The last k above 0.
    pub(crate) num_spec_tokens: u64,
}

impl Tally {
    /// Adds a step, less what was taken of it before.
    pub(crate) fn add(&mut self, step: &Step, taken: &Amounts) {
        self.amounts.add(&step.amounts.minus(taken));
        if step.num_spec_tokens > 0 {
            self.num_spec_tokens = step.num_spec_tokens;
        }
        if step.drafted {
            self.drafted = true;
            self.missing = self.missing.with(Quantities::ALL.without(step.known));
            self.contradicted = self.contradicted.with(step.contradicted);
        }
    }

    /// Adds what was counted after these steps.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.amounts.add(&later.amounts);
        self.drafted |= later.drafted;
        self.missing = self.missing.with(later.missing);
        self.contradicted = self.contradicted.with(later.contradicted);
        if later.num_spec_tokens > 0 {
            self.num_spec_tokens = later.num_spec_tokens;
        }
    }

    /// Whether nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        !self.drafted && self.amounts == Amounts::default()
    }
}

/// A tally that the holder of an engine's baton adds to, step by step, without opening the books.
#[derive(Debug)]
pub(crate) struct HeldTally {
    amounts: [AtomicU64; Quantity::COUNT],
    /// Missing quantities, contradicted ones above them, then whether there were drafts.
    flags: AtomicU64,
    num_spec_tokens: AtomicU64,
}

const CONTRADICTED: u32 = 8;
const DRAFTED: u64 = 1 << 16;

impl HeldTally {
    pub(crate) const fn new() -> Self {
        Self {
            amounts: [const { AtomicU64::new(0) }; Quantity::COUNT],
            flags: AtomicU64::new(0),
            num_spec_tokens: AtomicU64::new(0),
        }
    }

    /// As [`Tally::add`], for a step with drafts of which nothing was taken.
    #[inline]
    pub(crate) fn add(&self, step: &Step) {
        self.see_num_spec_tokens(step.num_spec_tokens);
        for quantity in Quantity::ALL {
            count(&self.amounts[quantity as usize], step.amounts.get(quantity));
        }
        let flags = flags(Quantities::ALL.without(step.known), step.contradicted) | DRAFTED;
        self.flags.store(self.flags.load(Ordering::Relaxed) | flags, Ordering::Relaxed);
    }

    /// The k of a step, if it gave one.
    #[inline]
    pub(crate) fn see_num_spec_tokens(&self, num_spec_tokens: u64) {
        if num_spec_tokens > 0 {
            self.num_spec_tokens.store(num_spec_tokens, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_drafts(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DRAFTED != 0
    }

    pub(crate) fn get(&self) -> Tally {
        let flags = self.flags.load(Ordering::Relaxed);
        Tally {
            amounts: Amounts::from_fn(|quantity| self.amounts[quantity as usize].load(Ordering::Relaxed)),
            drafted: flags & DRAFTED != 0,
            missing: Quantities::from_bits(flags as u8),
            contradicted: Quantities::from_bits((flags >> CONTRADICTED) as u8),
            num_spec_tokens: self.num_spec_tokens.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn set(&self, tally: &Tally) {
        for quantity in Quantity::ALL {
            self.amounts[quantity as usize].store(tally.amounts.get(quantity), Ordering::Relaxed);
        }
        let drafted = if tally.drafted { DRAFTED } else { 0 };
        self.flags.store(flags(tally.missing, tally.contradicted) | drafted, Ordering::Relaxed);
        self.num_spec_tokens.store(tally.num_spec_tokens, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Tally {
        let tally = self.get();
        self.set(&Tally::default());
        tally
    }

    /// Puts what was taken before all that has been added since.
    pub(crate) fn put_back(&self, mut taken: Tally) {
        taken.merge(&self.get());
        self.set(&taken);
    }
}

#[inline]
fn flags(missing: Quantities, contradicted: Quantities) -> u64 {
    u64::from(missing.bits()) | u64::from(contradicted.bits()) << CONTRADICTED
}
