//! What of a step can be timed on the device, the marks that do it, and what they come to.

use std::time::Duration;

use crate::phases::Phase;
use crate::published::{Writing, word};

/// What is timed: a step, or one of its phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole step.
    Step,
    /// Its `spec_decode_draft` span.
    Draft,
    /// Its `spec_decode_verify` span.
    Verify,
}

impl Part {
    pub(crate) const COUNT: usize = 3;
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Step, Self::Draft, Self::Verify];

    /// The name under which it is exported.
    #[cfg(feature = "otel")]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Draft => "draft",
            Self::Verify => "verify",
        }
    }
}

impl From<Phase> for Part {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Draft => Self::Draft,
            Phase::Verify => Self::Verify,
        }
    }
}

/// A point of the engine's stream, behind all work that it has been given so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The part begins. [`Part::Step`] begins anew: earlier marks are void.
    Begin(Part),
    /// The part ends, perhaps not for the last time: the last such mark is the one that counts.
    End(Part),
}

/// What the device took between the marks of one step. A part without both its marks has no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuTimes {
    /// The whole step.
    pub step: Duration,
    /// Its drafting.
    pub draft: Option<Duration>,
    /// Its verifying.
    pub verify: Option<Duration>,
}

impl GpuTimes {
    const fn of(&self, part: Part) -> Option<Duration> {
        match part {
            Part::Step => Some(self.step),
            Part::Draft => self.draft,
            Part::Verify => self.verify,
        }
    }

    /// Adds the times to what is published.
    pub(crate) fn publish(&self, words: &Writing<'_>) {
        for part in Part::ALL {
            if let Some(time) = self.of(part) {
                words.add(
                    word::GPU_NANOS.wrapping_add(part as usize),
                    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
                );
                words.add(word::GPU_STEPS.wrapping_add(part as usize), 1);
            }
        }
    }
}
