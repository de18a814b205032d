//! vLLM V0's collector cases, played through real spans with a clock that is set by hand.
#![allow(missing_docs)]

mod support;

use std::time::Duration;
use support::Device;
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::layer::SubscriberExt;

/// Attaches at the first value; step i is at the value i + 1, begin and exit alike. True where the begin published.
fn play(
    rank: u32,
    clock: &[f64],
    accepted: u64,
    emitted: u64,
) -> (Vec<bool>, Option<tracing_spec_decode::SpecDecodeMetrics>) {
    let (quanta, mock) = quanta::Clock::mock();
    let at = |seconds: f64| Duration::from_secs_f64(seconds);
    let mut now = at(clock[0]);
    mock.increment(now);
    let (layer, handle) = builder().with_rank(rank).with_clock(quanta).build().unwrap();
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let device = Device::default();
    let _attached = handle.attach("0", device.source()).unwrap();
    device.set(accepted, emitted);
    let mut samples = 0;
    let mut published = Vec::new();
    for &seconds in &clock[1..] {
        mock.increment(at(seconds) - now);
        now = at(seconds);
        let drafts = if published.is_empty() && accepted > 0 { 21 } else { 0 };
        let span = step_span!(num_spec_tokens = 5, num_drafts = drafts);
        let step = span.enter();
        let resolved =
            usize::from(handle.status("0").last_sample_age == Some(Duration::ZERO) && samples < device.starts() - 1);
        samples += resolved;
        published.push(resolved == 1);
        drop(step);
        drop(span);
    }
    (published, handle.metrics("0"))
}

#[test]
fn the_clock_cases() {
    let cases: [(&[f64], &[bool]); 5] = [
        (&[0.0, 0.1], &[false]),
        (&[0.0, 5.1, 5.2], &[false, true]),
        (&[0.0, 5.1, 10.3], &[false, true]),
        (&[0.0, 4.9, 4.9, 5.1, 5.1], &[false, false, false, true]),
        (&[0.0, 5.1, 5.1, 5.2, 5.2, 10.1, 10.1], &[false, true, false, false, false, true]),
    ];
    for (clock, expected) in cases {
        assert_eq!(play(0, clock, 0, 0).0, expected, "{clock:?}");
    }
    for rank in 1..5 {
        assert_eq!(play(rank, &[0.0, 5.1, 10.3], 0, 0).0, [false, false]);
    }
}

#[test]
fn the_values_of_the_first_sample() {
    let metrics = play(0, &[0.0, 5.1, 5.2], 103, 104).1.unwrap();
    assert_eq!(metrics.num_spec_tokens, Some(5));
    assert_eq!(metrics.max_emitted_tokens(), Some(126));
    assert_eq!(format!("{:.8}", metrics.draft_acceptance_rate()), "0.98095238");
    assert_eq!(format!("{:.8}", metrics.system_efficiency()), "0.82539683");
}
