//! A flush: copies in flight are waited out, and one more is taken of each engine.

use std::time::{Duration, Instant};

use crate::collection::Started;
use crate::engine::Engine;
use crate::errors::{FlushError, FlushFailure};
use crate::sample::Sample;
use crate::shared::Shared;
use crate::source::{Busy, Failed, SourceError};
use crate::window::End;

/// Flushes all engines; each that could not be flushed is named in the error.
pub(crate) fn flush(shared: &Shared, timeout: Duration) -> Result<(), FlushError> {
    let deadline = Instant::now().checked_add(timeout);
    let mut waiting: Vec<Flush<'_>> = shared
        .engines
        .iter()
        .map(|engine| Flush { engine, own: None, has_asked: false, losses: None, why: FlushFailure::Busy })
        .collect();
    let mut failures = Vec::new();
    let mut pause = Duration::from_micros(20);
    loop {
        waiting.retain_mut(|flush| match flush.go_on(shared) {
            Progress::Done => false,
            Progress::Failed(failure) => {
                failures.push((flush.engine.name.to_string(), failure));
                false
            }
            Progress::Waiting(why) => {
                flush.why = why;
                true
            }
        });
        if waiting.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        std::thread::sleep(pause);
        pause = pause.saturating_mul(2).min(Duration::from_millis(1));
    }
    #[cfg(feature = "otel-trace")]
    shared.flush_traces(deadline);
    failures.extend(waiting.iter().map(|flush| (flush.engine.name.to_string(), flush.why)));
    if failures.is_empty() { Ok(()) } else { Err(FlushError { failures }) }
}

/// The flush of one engine, as far as it has come.
struct Flush<'a> {
    engine: &'a Engine,
    /// The generation of the copy that this flush has started.
    own: Option<u64>,
    /// The source has been asked for a copy: if it is busy, that is counted once.
    has_asked: bool,
    /// The engine's losses when this flush first had it.
    losses: Option<u64>,
    why: FlushFailure,
}

enum Progress {
    Done,
    Waiting(FlushFailure),
    Failed(FlushFailure),
}

impl Flush<'_> {
    fn go_on(&mut self, shared: &Shared) -> Progress {
        let Some(holding) = self.engine.try_hold(shared) else { return Progress::Waiting(FlushFailure::Busy) };
        let now = shared.ticks.now();
        holding.poll_copy(now, true);
        let Some(mut books) = self.engine.books() else { return Progress::Waiting(FlushFailure::Busy) };
        let is_published = |resolved: u64| self.own.is_some_and(|own| resolved >= own);
        if *self.losses.get_or_insert(books.losses) != books.losses {
            // The source was detached meanwhile.
            let has_ended_well = is_published(books.resolved_before_loss);
            return if has_ended_well { Progress::Done } else { Progress::Failed(FlushFailure::Failed) };
        }
        let Some(attachment) = books.attachment.as_mut() else {
            if self.engine.is_under_way(None, shared) {
                return Progress::Waiting(FlushFailure::Busy);
            }
            self.engine.turn_window(&self.engine.published.write(), now, shared, End::Early);
            return Progress::Done;
        };
        // Whatever happened since, and whether a step is under way now: what was to be published is.
        if is_published(attachment.collector.last_resolved()) {
            return Progress::Done;
        }
        if attachment.collector.is_dead() {
            return Progress::Failed(FlushFailure::Dead);
        }
        if !attachment.counts_drafts() && self.engine.is_under_way(None, shared) {
            return Progress::Waiting(FlushFailure::Busy);
        }
        if attachment.on_host {
            return match self.engine.read_host(&mut books, shared, None, true) {
                None => Progress::Done,
                Some(error) => waiting_or_failed(error),
            };
        }
        if attachment.collector.flight().is_some() {
            return Progress::Waiting(FlushFailure::Timeout);
        }
        if self.own.take().is_some_and(|own| attachment.collector.has_failed(own)) {
            return Progress::Failed(FlushFailure::Failed);
        }
        let sample = Sample { by_flush: true, ..Sample::default() };
        let first = !std::mem::replace(&mut self.has_asked, true);
        match holding.start_copy(&mut books, now, None, sample, first) {
            Some(Started::Yes(generation)) => {
                self.own = Some(generation);
                Progress::Waiting(FlushFailure::Timeout)
            }
            Some(Started::Refused(error)) => waiting_or_failed(error),
            Some(Started::NoLonger) | None => Progress::Waiting(FlushFailure::Busy),
        }
    }
}

fn waiting_or_failed(error: SourceError) -> Progress {
    match error {
        SourceError::Busy(Busy::WrongThread) => Progress::Waiting(FlushFailure::WrongThread),
        SourceError::Busy(_) => Progress::Waiting(FlushFailure::Busy),
        SourceError::Failed(Failed::Timeout) => Progress::Waiting(FlushFailure::Timeout),
        SourceError::Failed(_) => Progress::Failed(FlushFailure::Failed),
        SourceError::Dead(_) => Progress::Failed(FlushFailure::Dead),
    }
}
