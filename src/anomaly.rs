//! What can be wrong with a step or a sample: a closed set, each kind counted.

/// A contradiction or a loss that the numbers can't show by themselves.
///
/// None of these ever reaches the engine as an error: they are counted as `spec_decode.anomalies`, with the name as
/// `spec_decode.anomaly.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Anomaly {
    /// A field's value was negative, too wide (above `u32::MAX`) or of the wrong type. The field counts as absent.
    InvalidValue,
    /// The step had drafts, but nobody said how many tokens were accepted: an early return, a cancelled future.
    Incomplete,
    /// The step had drafts, but their number or that of their tokens can't be known from the fields.
    DraftsUnknown,
    /// Draft tokens below drafts, or above drafts times `num_spec_tokens`.
    DraftsInconsistent,
    /// More tokens accepted than were drafted. Often the target's own token has been counted as accepted.
    AcceptedExceedsDraft,
    /// More tokens emitted than draft tokens plus one per draft.
    EmittedExceedsPossible,
    /// The step did not say how many tokens were emitted, while another step of the engine did.
    EmittedUnknown,
    /// The source and the fields of the same steps differ.
    SourceDisagrees,
    /// A copy started while another step was under way: the drafts, counted on the host, are not of the same instant.
    Overlap,
    /// A counter of the source fell: it was restarted, and what it had counted since the last sample is lost.
    CounterRestarted,
    /// Something was counted at a draft position beyond the layer's bound. It is in the totals all the same.
    PositionOverBound,
    /// `engine` or `rank` was recorded after the span's creation, and ignored.
    LateIdentity,
}

impl Anomaly {
    pub(crate) const COUNT: usize = 12;
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::InvalidValue,
        Self::Incomplete,
        Self::DraftsUnknown,
        Self::DraftsInconsistent,
        Self::AcceptedExceedsDraft,
        Self::EmittedExceedsPossible,
        Self::EmittedUnknown,
        Self::SourceDisagrees,
        Self::Overlap,
        Self::CounterRestarted,
        Self::PositionOverBound,
        Self::LateIdentity,
    ];

    /// The name under which it is exported.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::InvalidValue => "invalid_value",
            Self::Incomplete => "incomplete",
            Self::DraftsUnknown => "drafts_unknown",
            Self::DraftsInconsistent => "drafts_inconsistent",
            Self::AcceptedExceedsDraft => "accepted_exceeds_draft",
            Self::EmittedExceedsPossible => "emitted_exceeds_possible",
            Self::EmittedUnknown => "emitted_unknown",
            Self::SourceDisagrees => "source_disagrees",
            Self::Overlap => "overlap",
            Self::CounterRestarted => "counter_restarted",
            Self::PositionOverBound => "position_over_bound",
            Self::LateIdentity => "late_identity",
        }
    }
}

/// Anomalies that belong to no engine.
pub(crate) const ENGINE_REFUSED: &str = "engine_refused";
/// See [`ENGINE_REFUSED`].
pub(crate) const OPEN_STEPS_OVER_BOUND: &str = "open_steps_over_bound";

/// A set of anomalies, each of which a step can show once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Anomalies(u16);

impl Anomalies {
    /// Those that keep a step of an engine without a source from being counted.
    pub(crate) const UNCOUNTABLE: Self = Self(
        1 << Anomaly::Incomplete as u16
            | 1 << Anomaly::DraftsUnknown as u16
            | 1 << Anomaly::DraftsInconsistent as u16
            | 1 << Anomaly::AcceptedExceedsDraft as u16
            | 1 << Anomaly::EmittedExceedsPossible as u16,
    );

    #[inline]
    pub(crate) fn insert_if(&mut self, anomaly: Anomaly, condition: bool) {
        self.0 |= u16::from(condition) << anomaly as u16;
    }

    pub(crate) const fn has(self, anomaly: Anomaly) -> bool {
        self.0 & 1 << anomaly as u16 != 0
    }

    #[inline]
    pub(crate) const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Anomaly> {
        Anomaly::ALL.into_iter().filter(move |&anomaly| self.has(anomaly))
    }
}
