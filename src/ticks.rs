//! The clock of the engine's thread: raw ticks, converted only off the hot path.

use std::time::Duration;

/// No tick: what never comes, or has not been.
pub(crate) const NEVER: u64 = u64::MAX;

/// A [`quanta::Clock`] read raw.
#[derive(Clone, Debug)]
pub(crate) struct Ticks {
    clock: quanta::Clock,
}

impl Ticks {
    pub(crate) fn new(clock: quanta::Clock) -> Self {
        Self { clock }
    }

    /// Now. One instruction of the processor where it has a steady counter.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.clock.raw()
    }

    /// How long `ticks` are.
    pub(crate) fn duration(&self, ticks: u64) -> Duration {
        Duration::from_nanos(self.clock.delta_as_nanos(0, ticks))
    }

    /// How many ticks fit into `duration`. quanta converts in the other direction only, so its rate is taken over 2^32
    /// ticks: right to a billionth, and exact for a mocked clock, whose tick is a nanosecond.
    pub(crate) fn in_duration(&self, duration: Duration) -> u64 {
        let reference = 1_u64 << 32;
        let nanos = u128::from(self.clock.delta_as_nanos(0, reference).max(1));
        let ticks = duration.as_nanos().saturating_mul(u128::from(reference)).checked_div(nanos).unwrap_or_default();
        u64::try_from(ticks).unwrap_or(NEVER)
    }
}
