//! How an engine is doing, in words: the answer to "no data?".

use std::fmt;
use std::time::Duration;

use crate::collection::state;
use crate::engine::Engine;
use crate::engine_totals::Steps;
use crate::handle::PATIENCE;
use crate::published::word;
use crate::shared::Shared;
use crate::ticks::NEVER;

/// How an engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Steps that have closed. If it stays 0 while the engine runs, its spans don't reach the layer: most often a
    /// global `EnvFilter` hides them.
    pub steps: u64,
    /// Steps that are open. If it grows, each step is the child of the last: a guard is kept while the next is made.
    pub open_steps: usize,
    /// How old the last sample of the source is; `None` where there has been none.
    pub last_sample_age: Option<Duration>,
    /// What the source is doing.
    pub source: SourceState,
}

impl Status {
    pub(crate) fn of(engine: &Engine, shared: &Shared) -> Self {
        let Some(reading) = engine.published.read_within(PATIENCE) else { return Self::default() };
        let now = shared.ticks.now();
        let age = |since: u64| (since != NEVER).then(|| shared.ticks.duration(now.saturating_sub(since)));
        let [plain, drafted] = Steps::read(|word| reading.words[word]).closed;
        Self {
            steps: plain.saturating_add(drafted),
            open_steps: shared.steps.count_of_engine(engine.index),
            last_sample_age: age(reading.words[word::LAST_SAMPLE]),
            source: match reading.words[word::SOURCE_STATE] {
                state::ON_HOST => SourceState::OnHost,
                state::IDLE => SourceState::Idle,
                state::IN_FLIGHT => {
                    SourceState::InFlight(age(reading.words[word::IN_FLIGHT_SINCE]).unwrap_or_default())
                }
                state::BACKING_OFF => SourceState::BackingOff,
                state::DEAD => SourceState::Dead,
                _ => SourceState::None,
            },
        }
    }
}

/// One line for a log or a health page.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.steps, self.open_steps) {
            (0, 0) => f.write_str("no step has reached the layer: does a filter on the whole stack hide its spans?")?,
            (0, open) => write!(f, "no step has closed, {open} open: is each the child of the last?")?,
            (steps, open) => write!(f, "{steps} steps closed, {open} open")?,
        }
        write!(f, "; {}", self.source)?;
        match self.last_sample_age {
            Some(age) => write!(f, ", last sample {:.1} s ago", age.as_secs_f64()),
            None => Ok(()),
        }
    }
}

/// What an engine's source is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceState {
    /// No source is attached: the spans' fields count.
    #[default]
    None,
    /// Its counters are on the host, and read at each close.
    OnHost,
    /// No copy is in flight.
    Idle,
    /// A copy has been in flight for so long.
    InFlight(Duration),
    /// It failed, and will be tried again.
    BackingOff,
    /// It will not be tried again.
    Dead,
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no source, the fields count"),
            Self::OnHost => f.write_str("source on the host"),
            Self::Idle => f.write_str("source idle"),
            Self::InFlight(age) => write!(f, "a copy in flight for {:.1} s", age.as_secs_f64()),
            Self::BackingOff => f.write_str("source failed, will be tried again"),
            Self::Dead => f.write_str("source dead, the fields count"),
        }
    }
}
