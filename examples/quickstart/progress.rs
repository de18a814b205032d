//! One line on the terminal, rewritten while the engine decodes: read from the layer's handle, off the decode thread.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing_spec_decode::{Handle, SpecDecodeMetrics};

use crate::report::grouped;

const CLEAR: &str = "\r\x1b[K";

/// The line, up to its end.
#[derive(Debug)]
pub(crate) struct Progress {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Nothing where stderr is no terminal.
    pub(crate) fn start(handle: Handle, steps: u64, interval: Duration) -> Option<Self> {
        let (stop, stopped) = mpsc::channel();
        let every = interval.clamp(Duration::from_millis(100), Duration::from_secs(1));
        let show = move || {
            let (mut earlier, mut at) = (SpecDecodeMetrics::default(), Instant::now());
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let later = handle.metrics("0").unwrap_or_default();
                let seen = handle.status("0").steps;
                let window = later.since(&earlier);
                let line = line(seen, steps, &window, at.elapsed());
                let _ = write!(io::stderr(), "{CLEAR}{line}");
                (earlier, at) = (later, Instant::now());
            }
            let _ = write!(io::stderr(), "{CLEAR}");
        };
        io::stderr().is_terminal().then(|| Self { stop, thread: thread::spawn(show) })
    }

    pub(crate) fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}

fn line(seen: u64, steps: u64, window: &SpecDecodeMetrics, length: Duration) -> String {
    let rate = window.emitted_tokens.unwrap_or_default() as f64 / length.as_secs_f64();
    format!(
        "step {} of {}: acceptance {:.3}, efficiency {:.3}, mean length {:.2}, {} tokens/s",
        grouped(seen),
        grouped(steps),
        window.draft_acceptance_rate(),
        window.system_efficiency(),
        window.mean_acceptance_length(),
        grouped(rate as u64),
    )
}
