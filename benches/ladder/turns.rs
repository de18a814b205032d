//! Measuring in turns: whatever disturbs the machine disturbs all contenders alike, and the median forgets it.

use std::time::Duration;

/// Odd, so that there is a middle one.
const ROUNDS: usize = 41;

/// Runs every contender once per round; each one's median, `None` for one that could not run.
pub(crate) fn medians<T>(contenders: &[T], run: impl Fn(&T) -> Option<Duration>) -> Vec<Option<Duration>> {
    let mut times = vec![Vec::with_capacity(ROUNDS); contenders.len()];
    for _ in 0..ROUNDS {
        for (contender, times) in contenders.iter().zip(&mut times) {
            times.extend(run(contender));
        }
    }
    times.into_iter().map(median).collect()
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

pub(crate) fn nanoseconds(time: Duration, per: u32) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(per)
}
