//! Events that measure: a pair for a step and one for each of its phases, recorded in the engine's stream.

use std::ptr;
use std::time::Duration;

use super::CudaError;
use super::driver::{Driver, Handle, SUCCESS, check};
use super::guard::Guard;
use crate::marks::{GpuTimes, Mark, Part};

/// BLOCKING_SYNC alone: with DISABLE_TIMING, as all other events of ours have it, they would measure nothing.
const TIMING_EVENT: u32 = 1;

/// The events of one kit.
pub(super) struct Timing {
    driver: &'static Driver,
    begin: [Handle; Part::COUNT],
    end: [Handle; Part::COUNT],
}

/// Which marks were recorded since the last step began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recorded {
    begun: [bool; Part::COUNT],
    ended: [bool; Part::COUNT],
}

impl Recorded {
    /// From here on the event of this mark says nothing, until it has been recorded.
    pub(super) fn prepare(&mut self, mark: Mark) {
        match mark {
            Mark::Begin(Part::Step) => *self = Self::default(),
            mark => self.set(mark, false),
        }
    }

    pub(super) fn record(&mut self, mark: Mark) {
        self.set(mark, true);
    }

    fn set(&mut self, mark: Mark, recorded: bool) {
        match mark {
            Mark::Begin(part) => self.begun[part as usize] = recorded,
            Mark::End(part) => self.ended[part as usize] = recorded,
        }
    }

    const fn has(&self, part: Part) -> bool {
        self.begun[part as usize] && self.ended[part as usize]
    }
}

impl Timing {
    /// Makes the events; `None` where the driver can't tell the time between two.
    pub(super) fn make(driver: &'static Driver, inside: &Guard) -> Result<Option<Self>, CudaError> {
        if driver.elapsed.is_none() {
            return Ok(None);
        }
        let mut timing = Self { driver, begin: [ptr::null_mut(); Part::COUNT], end: [ptr::null_mut(); Part::COUNT] };
        for event in timing.begin.iter_mut().chain(&mut timing.end) {
            // SAFETY: the pointer is to a field of the type that the function fills in.
            if let Err(error) = check("cuEventCreate", unsafe { (driver.event_create)(event, TIMING_EVENT) }) {
                timing.destroy(inside);
                return Err(error);
            }
        }
        Ok(Some(timing))
    }

    /// Records a mark behind all work that the stream has been given so far.
    ///
    /// # Safety
    ///
    /// The stream is a living handle of the context that the guard has put in place, and is not being captured.
    pub(super) unsafe fn record(&self, mark: Mark, engine: Handle, _inside: &Guard) -> Result<(), CudaError> {
        let event = match mark {
            Mark::Begin(part) => self.begin[part as usize],
            Mark::End(part) => self.end[part as usize],
        };
        // SAFETY: the caller vouches for the stream; the event is ours.
        check("cuEventRecord", unsafe { (self.driver.event_record)(event, engine) })
    }

    /// What the device took. Only once something that was submitted behind the marks is known to be done.
    pub(super) fn read(&self, recorded: Recorded, inside: &Guard) -> Option<GpuTimes> {
        let mut times = GpuTimes { step: self.elapsed(Part::Step, recorded, inside)?, draft: None, verify: None };
        times.draft = self.elapsed(Part::Draft, recorded, inside);
        times.verify = self.elapsed(Part::Verify, recorded, inside);
        Some(times)
    }

    fn elapsed(&self, part: Part, recorded: Recorded, _inside: &Guard) -> Option<Duration> {
        let elapsed = self.driver.elapsed.filter(|_| recorded.has(part))?;
        let (begin, end) = (self.begin[part as usize], self.end[part as usize]);
        let mut milliseconds = 0_f32;
        // SAFETY: the pointer is to a local of the type that the function fills in; both events were recorded.
        let code = unsafe { elapsed(&raw mut milliseconds, begin, end) };
        // A time below zero is none.
        let time = Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok();
        time.filter(|_| code == SUCCESS)
    }

    /// Gives the events back to the driver, which does not mind if they have not come to pass.
    pub(super) fn destroy(self, _inside: &Guard) {
        for event in self.begin.into_iter().chain(self.end).filter(|event| !event.is_null()) {
            // SAFETY: the event is ours and not used again. An error leaves nothing to do.
            unsafe { (self.driver.event_destroy)(event) };
        }
    }
}
