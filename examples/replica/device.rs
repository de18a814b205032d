//! Counters that can't be read in place: a snapshot of them takes its time to arrive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing_spec_decode::source::{CounterSource, Counters, Layout, Snapshot, SourceError};

/// One sequence's draft, and what became of it.
pub(crate) struct Draft {
    pub(crate) drafted: u32,
    accepted: u32,
}

impl Draft {
    /// Of up to `most` tokens, each accepted with probability `accept` if the one before it was.
    pub(crate) fn random(most: u32, accept: f64, random: &mut fastrand::Rng) -> Self {
        let drafted = random.u32(1..=most);
        let accepted = (0..drafted).take_while(|_| random.f64() < accept).count() as u32;
        Self { drafted, accepted }
    }
}

/// The device.
pub(crate) struct Device {
    counts: Arc<Mutex<Counters>>,
    layout: Layout,
}

impl Device {
    pub(crate) fn new(positions: usize) -> Self {
        let layout = Layout::accepted()
            .with_emitted()
            .with_drafts()
            .with_draft_tokens()
            .with_accepted_positions(positions)
            .with_draft_positions(positions);
        Self { counts: Arc::new(Mutex::new(Counters::for_layout(layout))), layout }
    }

    pub(crate) fn count(&self, draft: &Draft) {
        let mut counts = lock(&self.counts);
        counts.drafts += 1;
        counts.draft_tokens += u64::from(draft.drafted);
        counts.accepted += u64::from(draft.accepted);
        counts.emitted += u64::from(draft.accepted) + 1;
        counts.draft_per_position.iter_mut().take(draft.drafted as usize).for_each(|count| *count += 1);
        counts.accepted_per_position.iter_mut().take(draft.accepted as usize).for_each(|count| *count += 1);
    }

    pub(crate) fn counts(&self) -> Counters {
        lock(&self.counts).clone()
    }

    pub(crate) fn source(&self, latency: Duration) -> DeviceSource {
        DeviceSource { counts: Arc::clone(&self.counts), layout: self.layout, latency, copy: None }
    }
}

/// Copies the device's counters.
pub(crate) struct DeviceSource {
    counts: Arc<Mutex<Counters>>,
    layout: Layout,
    latency: Duration,
    copy: Option<(Instant, Counters)>,
}

impl CounterSource for DeviceSource {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn start(&mut self) -> Result<(), SourceError> {
        self.copy = Some((Instant::now(), lock(&self.counts).clone()));
        Ok(())
    }

    fn poll(&mut self, counters: &mut Counters) -> Result<Snapshot, SourceError> {
        match self.copy.take_if(|(started, _)| started.elapsed() >= self.latency) {
            Some((_, copy)) => {
                *counters = copy;
                Ok(Snapshot::Landed)
            }
            None => Ok(Snapshot::Pending),
        }
    }
}

fn lock(counts: &Mutex<Counters>) -> MutexGuard<'_, Counters> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}
