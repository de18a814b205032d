//! What the handle refuses, and why.

use std::fmt;

use crate::source::SourceError;

/// Why an engine could not be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DescribeError {
    /// Its steps have begun, or it was described or attached before.
    Known,
    /// Its name is empty or longer than 64 bytes.
    Name,
    /// There are as many engines as the builder allows.
    TooManyEngines,
}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known => "the engine is known already: describe it before its first step and before attaching",
            Self::Name => "an engine's name has 1 to 64 bytes",
            Self::TooManyEngines => "there are as many engines as the builder allows",
        })
    }
}

impl std::error::Error for DescribeError {}

/// Why a source could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// The engine has a source.
    Attached,
    /// The engine's thread kept the engine busy.
    Busy,
    /// The engine's name is empty or longer than 64 bytes.
    Name,
    /// There are as many engines as the builder allows.
    TooManyEngines,
    /// The source's zero could not be read.
    Source(SourceError),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => f.write_str("the engine has a source: drop its guard first"),
            Self::Busy => f.write_str("the engine's thread kept the engine busy"),
            Self::Name => f.write_str("an engine's name has 1 to 64 bytes"),
            Self::TooManyEngines => f.write_str("there are as many engines as the builder allows"),
            Self::Source(error) => write!(f, "the source's zero could not be read: {error}"),
        }
    }
}

impl std::error::Error for AttachError {}

/// Engines that could not be flushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushError {
    pub(crate) failures: Vec<(String, FlushFailure)>,
}

impl FlushError {
    /// Each engine that failed, and why.
    pub fn failures(&self) -> impl Iterator<Item = (&str, FlushFailure)> {
        self.failures.iter().map(|(engine, failure)| (engine.as_str(), *failure))
    }
}

/// Why an engine could not be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlushFailure {
    /// A step was open, or the source busy, until the deadline.
    Busy,
    /// The copy did not land before the deadline; it stays in flight.
    Timeout,
    /// The source failed, or was detached meanwhile with what was to be published.
    Failed,
    /// The source is dead.
    Dead,
    /// The source may be used on another thread only.
    WrongThread,
}

impl fmt::Display for FlushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not flushed:")?;
        for (engine, failure) in self.failures() {
            write!(f, " engine {engine:?} ({failure:?})")?;
        }
        Ok(())
    }
}

impl std::error::Error for FlushError {}
