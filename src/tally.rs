//! What the fields of an engine's steps add up to between two samples of its source.

use crate::quantity::{Amounts, Quantities};
use crate::step::Step;

/// The sum of some steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) amounts: Amounts,
    /// Steps with drafts.
    pub(crate) drafted: u64,
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
            self.drafted = self.drafted.saturating_add(1);
            self.missing = self.missing.with(Quantities::ALL.without(step.known));
            self.contradicted = self.contradicted.with(step.contradicted);
        }
    }

    /// Adds what was counted after these steps.
    pub(crate) fn merge(&mut self, later: &Self) {
        self.amounts.add(&later.amounts);
        self.drafted = self.drafted.saturating_add(later.drafted);
        self.missing = self.missing.with(later.missing);
        self.contradicted = self.contradicted.with(later.contradicted);
        if later.num_spec_tokens > 0 {
            self.num_spec_tokens = later.num_spec_tokens;
        }
    }

    /// Whether nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.drafted == 0 && self.amounts == Amounts::default()
    }
}
