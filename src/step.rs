//! The contract of a step: its fields, and what they amount to when it closes.

use crate::anomaly::{Anomalies, Anomaly};
use crate::quantity::{Amounts, Quantities, Quantity};

/// The span's name, where the builder gives no other.
pub(crate) const SPAN_NAME: &str = "spec_decode_step";

/// A field that holds a number of something.
#[expect(clippy::enum_variant_names, reason = "the variants are the fields' names")]
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
    /// The first fields are read as 0 where they are absent; the others are not read then.
    pub(crate) const READ_WHEN_ABSENT: usize = Self::NumEmittedTokens as usize + 1;
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

/// The numbers that every step is read for, each at most `u32::MAX`; 0 where one is absent.
///
/// The bound is the contract's "too wide": no step has four thousand million tokens, and no product of two fields can
/// overflow 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    present: u32,
    values: [u32; Count::READ_WHEN_ABSENT],
}

impl Fields {
    pub(crate) const fn new(present: u32, values: [u32; Count::READ_WHEN_ABSENT]) -> Self {
        Self { present, values }
    }

    /// The bit of `present` that says that some value was misused.
    pub(crate) const MISUSED: u32 = 1 << 31;

    /// Whether there are discarded tokens, or misused values.
    #[inline]
    pub(crate) const fn has_rarities(&self) -> bool {
        self.present & (Self::MISUSED | 1 << Count::NumDiscardedDraftTokens as u32) != 0
    }

    /// Whether something is said of the whole batch.
    #[inline]
    pub(crate) const fn has_batch(&self) -> bool {
        self.present & (1 << Count::NumSequences as u32 | 1 << Count::NumTokens as u32) != 0
    }

    #[inline]
    fn value(&self, count: Count) -> u64 {
        u64::from(self.values[count as usize])
    }

    /// k, where it is given and above 0; else 0.
    #[inline]
    pub(crate) fn num_spec_tokens(&self) -> u64 {
        self.value(Count::NumSpecTokens)
    }

    /// Whether drafts were verified: one of the three fields about them is given, and none of them is 0.
    #[inline(always)]
    pub(crate) fn has_drafts(&self) -> bool {
        const DRAFT_FIELDS: u32 =
            1 << Count::NumSpecTokens as u32 | 1 << Count::NumDrafts as u32 | 1 << Count::NumDraftTokens as u32;
        let zero = |count: Count| u32::from(self.value(count) == 0) << count as u32;
        let zeros = zero(Count::NumSpecTokens) | zero(Count::NumDrafts) | zero(Count::NumDraftTokens);
        let given = self.present & DRAFT_FIELDS;
        given != 0 && given & zeros == 0
    }

    /// The quantities that the fields give. Their fields follow each other as the quantities do.
    #[inline]
    const fn quantities(&self) -> Quantities {
        Quantities::from_bits((self.present >> Count::NumDrafts as u32) as u8)
    }
}

const _: () = assert!(
    Count::NumDraftTokens as usize == Count::NumDrafts as usize + Quantity::DraftTokens as usize
        && Count::NumAcceptedTokens as usize == Count::NumDrafts as usize + Quantity::Accepted as usize
        && Count::NumEmittedTokens as usize == Count::NumDrafts as usize + Quantity::Emitted as usize
);

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
    /// k, where it is given and above 0; else 0.
    pub(crate) num_spec_tokens: u64,
}

impl Step {
    /// Reads the fields of a closed step.
    ///
    /// `from_source` are the quantities that the engine's source counts, whose fields nobody misses. `emitted_given`
    /// says whether an earlier step of the engine gave its emitted tokens.
    #[inline(always)]
    pub(crate) fn of(fields: &Fields, from_source: Quantities, emitted_given: bool) -> Self {
        if fields.has_drafts() {
            Self::of_drafts(fields, from_source, emitted_given)
        } else {
            Self { num_spec_tokens: fields.num_spec_tokens(), ..Self::default() }
        }
    }

    /// As [`Self::of`], for a step that has drafts.
    #[inline(always)]
    pub(crate) fn of_drafts(fields: &Fields, from_source: Quantities, emitted_given: bool) -> Self {
        const WITHOUT_EMITTED: Quantities = Quantities::ALL.without(Quantities::of(Quantity::Emitted));
        let num_spec_tokens = fields.num_spec_tokens();
        let mut known = fields.quantities();
        let mut drafts = fields.value(Count::NumDrafts);
        let mut tokens = fields.value(Count::NumDraftTokens);
        let accepted = fields.value(Count::NumAcceptedTokens);
        let emitted = fields.value(Count::NumEmittedTokens);
        if num_spec_tokens > 0 {
            if !known.has(Quantity::DraftTokens) && known.has(Quantity::Drafts) {
                // Too wide is unknown, as it is for a field.
                let product = drafts.wrapping_mul(num_spec_tokens);
                if product <= u32::MAX.into() {
                    tokens = product;
                    known = known.with(Quantities::of(Quantity::DraftTokens));
                }
            } else if !known.has(Quantity::Drafts)
                && let Some(quotient) = exact_quotient(tokens, num_spec_tokens)
                && known.has(Quantity::DraftTokens)
            {
                drafts = quotient;
                known = known.with(Quantities::of(Quantity::Drafts));
            }
        }
        let amounts = Amounts::new(drafts, tokens, accepted, emitted);

        let drafts_known = known.has(Quantity::Drafts) & known.has(Quantity::DraftTokens);
        let above_k = num_spec_tokens > 0 && tokens > drafts.wrapping_mul(num_spec_tokens);
        let inconsistent = drafts_known & ((tokens < drafts) | above_k);
        let too_many_accepted = known.has(Quantity::DraftTokens) & (accepted > tokens);
        let too_many_emitted = drafts_known & (emitted > amounts.max_emitted());
        let expected = if emitted_given { Quantities::ALL } else { WITHOUT_EMITTED };
        let missed = expected.without(known).without(from_source);
        let mut step = Self { drafted: true, amounts, known, num_spec_tokens, ..Self::default() };
        if !missed.is_empty() | inconsistent | too_many_accepted | too_many_emitted {
            let anomalies = &mut step.anomalies;
            anomalies.insert_if(Anomaly::Incomplete, missed.has(Quantity::Accepted));
            anomalies
                .insert_if(Anomaly::DraftsUnknown, missed.has(Quantity::Drafts) | missed.has(Quantity::DraftTokens));
            anomalies.insert_if(Anomaly::EmittedUnknown, missed.has(Quantity::Emitted));
            anomalies.insert_if(Anomaly::DraftsInconsistent, inconsistent);
            anomalies.insert_if(Anomaly::AcceptedExceedsDraft, too_many_accepted);
            anomalies.insert_if(Anomaly::EmittedExceedsPossible, too_many_emitted);
            if inconsistent | too_many_accepted | too_many_emitted {
                step.contradicted = Quantities::ALL;
            }
        }
        step
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
