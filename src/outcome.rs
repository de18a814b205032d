//! How a collection ended, and why: the attributes of `spec_decode.collections`.

use crate::source::{Busy, Dead, Failed, SourceError};

/// How a collection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// Its counters were published.
    Resolved,
    /// It could not start at this step, or it held half a step.
    Skipped,
    /// The source failed. What was counted is held back until the next one.
    Failed,
    /// The source was detached or died: what it had counted since the last sample is dropped.
    Lost,
}

impl Outcome {
    pub(crate) const COUNT: usize = 4;
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Resolved, Self::Skipped, Self::Failed, Self::Lost];

    /// The name under which it is exported.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// Why it ended so: the attribute `error.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reason {
    None,
    Capturing,
    Contended,
    WrongThread,
    HalfStep,
    Timeout,
    DeviceLost,
    NoDriver,
    DriverError,
}

impl Reason {
    pub(crate) const COUNT: usize = 9;
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::None,
        Self::Capturing,
        Self::Contended,
        Self::WrongThread,
        Self::HalfStep,
        Self::Timeout,
        Self::DeviceLost,
        Self::NoDriver,
        Self::DriverError,
    ];

    pub(crate) const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Capturing => Some("capturing"),
            Self::Contended => Some("contended"),
            Self::WrongThread => Some("wrong_thread"),
            Self::HalfStep => Some("half_step"),
            Self::Timeout => Some("timeout"),
            Self::DeviceLost => Some("device_lost"),
            Self::NoDriver => Some("no_driver"),
            Self::DriverError => Some("driver_error"),
        }
    }
}

impl From<SourceError> for Reason {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Busy(Busy::Capturing) => Self::Capturing,
            SourceError::Busy(Busy::Contended) => Self::Contended,
            SourceError::Busy(Busy::WrongThread) => Self::WrongThread,
            SourceError::Failed(Failed::Timeout) => Self::Timeout,
            SourceError::Failed(Failed::Driver(_)) | SourceError::Dead(Dead::Panicked) => Self::DriverError,
            SourceError::Dead(Dead::DeviceLost) => Self::DeviceLost,
            SourceError::Dead(Dead::NoDriver) => Self::NoDriver,
        }
    }
}
