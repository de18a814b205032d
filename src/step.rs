//! The contract of a step: its fields, and what they amount to when it closes.

use crate::anomaly::{Anomalies, Anomaly};
use crate::quantity::{Amounts, Quantities, Quantity};

/// The span's name, where the builder gives no other.
pub(crate) const SPAN_NAME: &str = "spec_decode_step";

/// A field that holds a number of something. The last two are checked as all are; no metric is made of them yet.
#[expect(clippy::enum_variant_names, reason = "the variants are the fields' names")]
#[allow(dead_code)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    NumSpecTokens,
    NumDrafts,
    NumDraftTokens,
    NumAcceptedTokens,
    NumEmittedTokens,
    NumDiscardedDraftTokens,
    NumSequences,
    NumTokens,
}

impl Count {
    pub(crate) const COUNT: usize = 8;
    pub(crate) const NAMES: [&str; Self::COUNT] = [
        "num_spec_tokens",
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
        "num_emitted_tokens",
        "num_discarded_draft_tokens",
        "num_sequences",
        "num_tokens",
    ];
}

/// The field that names the engine.
pub(crate) const ENGINE: &str = "engine";
/// The field that says the rank within the engine.
pub(crate) const RANK: &str = "rank";
/// The engine of a step that names none.
pub(crate) const DEFAULT_ENGINE: &str = "0";

/// The numbers that a step's fields have given, each at most `u32::MAX`.
///
/// The bound is the contract's "too wide": no step has four thousand million tokens, and with it no product of two
/// fields and no sum over a lifetime can overflow 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    present: u32,
    values: [u32; Count::COUNT],
}

impl Fields {
    pub(crate) const fn new(present: u32, values: [u32; Count::COUNT]) -> Self {
        Self { present, values }
    }

    #[inline]
    pub(crate) const fn present(&self) -> u32 {
        self.present
    }

    #[inline]
    pub(crate) const fn values(&self) -> &[u32; Count::COUNT] {
        &self.values
    }

    /// Sets the field with this index to a value.
    #[inline]
    pub(crate) fn set(&mut self, index: usize, value: u32) {
        if let Some(slot) = self.values.get_mut(index) {
            *slot = value;
            self.present |= 1 << index;
        }
    }

    /// Makes the field with this index absent.
    pub(crate) fn clear(&mut self, index: usize) {
        self.present &= !(1_u32.wrapping_shl(index as u32));
    }

    #[inline]
    pub(crate) fn get(&self, count: Count) -> Option<u64> {
        let value = u64::from(self.values[count as usize]);
        (self.present & 1 << count as u32 != 0).then_some(value)
    }

    #[inline]
    fn gives_zero(&self, count: Count) -> bool {
        self.get(count) == Some(0)
    }
}

/// What a closed step amounts to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    /// Whether it had drafts.
    pub(crate) drafted: bool,
    /// What the fields give; 0 where they don't.
    pub(crate) amounts: Amounts,
    /// The quantities that the fields give.
    pub(crate) known: Quantities,
    /// The quantities that contradict each other.
    pub(crate) contradicted: Quantities,
    pub(crate) anomalies: Anomalies,
    pub(crate) discarded: Option<u64>,
    /// k, where it is given and above 0.
    pub(crate) num_spec_tokens: Option<u64>,
}

impl Step {
    /// Reads the fields of a closed step.
    ///
    /// `from_source` are the quantities that the engine's source counts, whose fields nobody misses. `emitted_given`
    /// says whether an earlier step of the engine gave its emitted tokens.
    #[inline]
    pub(crate) fn of(fields: &Fields, from_source: Quantities, emitted_given: bool) -> Self {
        const DRAFT_FIELDS: u32 =
            1 << Count::NumSpecTokens as u32 | 1 << Count::NumDrafts as u32 | 1 << Count::NumDraftTokens as u32;

        let discarded = fields.get(Count::NumDiscardedDraftTokens);
        let spec_tokens = fields.get(Count::NumSpecTokens);
        let num_spec_tokens = spec_tokens.filter(|&k| k > 0);
        let drafted = fields.present & DRAFT_FIELDS != 0
            && !fields.gives_zero(Count::NumSpecTokens)
            && !fields.gives_zero(Count::NumDrafts)
            && !fields.gives_zero(Count::NumDraftTokens);
        if !drafted {
            return Self { discarded, num_spec_tokens, ..Self::default() };
        }

        let given_drafts = fields.get(Count::NumDrafts);
        let given_tokens = fields.get(Count::NumDraftTokens);
        let drafts = given_drafts.or_else(|| exact_quotient(given_tokens?, num_spec_tokens?));
        let tokens = given_tokens.or_else(|| Some(given_drafts?.wrapping_mul(num_spec_tokens?)));
        let accepted = fields.get(Count::NumAcceptedTokens);
        let emitted = fields.get(Count::NumEmittedTokens);

        let mut known = Quantities::NONE;
        for (quantity, given) in [
            (Quantity::Drafts, drafts),
            (Quantity::DraftTokens, tokens),
            (Quantity::Accepted, accepted),
            (Quantity::Emitted, emitted),
        ] {
            if given.is_some() {
                known = known.with(Quantities::of(quantity));
            }
        }
        let amounts = Amounts::new(
            drafts.unwrap_or_default(),
            tokens.unwrap_or_default(),
            accepted.unwrap_or_default(),
            emitted.unwrap_or_default(),
        );

        let missed = Quantities::ALL.without(known).without(from_source);
        let drafts_known = known.has(Quantity::Drafts) && known.has(Quantity::DraftTokens);
        let mut anomalies = Anomalies::default();
        anomalies.insert_if(Anomaly::Incomplete, missed.has(Quantity::Accepted));
        anomalies.insert_if(Anomaly::DraftsUnknown, missed.has(Quantity::Drafts) || missed.has(Quantity::DraftTokens));
        anomalies.insert_if(Anomaly::EmittedUnknown, missed.has(Quantity::Emitted) && emitted_given);
        let [drafts, tokens] = [amounts.get(Quantity::Drafts), amounts.get(Quantity::DraftTokens)];
        let most = num_spec_tokens.map_or(u64::MAX, |k| drafts.wrapping_mul(k));
        let inconsistent = drafts_known && (tokens < drafts || tokens > most);
        let too_many_accepted = known.has(Quantity::DraftTokens) && amounts.get(Quantity::Accepted) > tokens;
        let too_many_emitted = drafts_known && amounts.get(Quantity::Emitted) > amounts.max_emitted();
        anomalies.insert_if(Anomaly::DraftsInconsistent, inconsistent);
        anomalies.insert_if(Anomaly::AcceptedExceedsDraft, too_many_accepted);
        anomalies.insert_if(Anomaly::EmittedExceedsPossible, too_many_emitted);

        let mut contradicted = Quantities::NONE;
        if inconsistent | too_many_accepted | too_many_emitted {
            contradicted = Quantities::ALL;
        }
        Self { drafted, amounts, known, contradicted, anomalies, discarded, num_spec_tokens }
    }

    /// Whether a step of an engine without a source counts.
    #[inline]
    pub(crate) const fn is_whole(&self) -> bool {
        self.drafted && !self.anomalies.intersects(Anomalies::UNCOUNTABLE)
    }
}

/// `tokens / k`, if that leaves nothing over.
fn exact_quotient(tokens: u64, k: u64) -> Option<u64> {
    (tokens.checked_rem(k)? == 0).then(|| tokens.checked_div(k))?
}
