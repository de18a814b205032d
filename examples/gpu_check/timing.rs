//! How long a call takes: median, 99th percentile, largest.

use std::time::Instant;

use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Times(Vec<u64>);

impl Times {
    pub(crate) fn take<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let value = f();
        self.0.push(start.elapsed().as_nanos() as u64);
        value
    }

    pub(crate) fn json(mut self) -> Value {
        self.0.sort_unstable();
        let at = |share: f64| self.0.get((self.0.len() as f64 * share) as usize).or(self.0.last()).copied();
        json!({ "median_ns": at(0.5), "p99_ns": at(0.99), "max_ns": self.0.last(), "calls": self.0.len() })
    }
}
