//! Every vector of `vectors/public.json`: V0's collector cases with a clock that is set by hand, the values of public
//! logs and bug reports to the printed digits, and V1's observed drafts through real spans and the exporter.

mod support;

use std::time::Duration;

use serde_json::Value;
use support::{Device, Exported, Points, anomaly, of_engine, of_position, set_default, stack_of};
use tracing_spec_decode::{HostCounters, SpecDecodeMetrics, builder, step_span};

fn vectors(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("vectors/public.json")).unwrap();
    let cases = all[kind].as_array().unwrap().clone();
    assert!(!cases.is_empty());
    cases
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn counts(value: &Value) -> Option<Vec<u64>> {
    Some(value.as_array()?.iter().map(count).collect())
}

/// Compares after rounding; a printed null is undefined.
fn assert_printed(computed: f64, printed: &Value, decimals: &Value, what: &str) {
    match printed.as_f64() {
        Some(printed) => {
            let decimals = decimals.as_u64().unwrap() as usize;
            assert_eq!(format!("{computed:.decimals$}"), format!("{printed:.decimals$}"), "{what}");
        }
        None => assert!(computed.is_nan(), "{what}: {computed}"),
    }
}

#[test]
fn v0s_collector_cases_with_their_clocks() {
    for case in vectors("v0_clock") {
        let name = case["name"].as_str().unwrap();
        let seconds = |value: &Value| Duration::from_secs_f64(value.as_f64().unwrap());
        let times: Option<Vec<Duration>> = case["clock"].as_array().map(|clock| clock.iter().map(seconds).collect());
        let (clock, mock) = quanta::Clock::mock();
        let clock = if times.is_some() { clock } else { quanta::Clock::new() };
        let mut now = Duration::ZERO;
        let mut set_clock = |call: usize| {
            let at = times.as_ref().map_or(now, |times| times[call]);
            mock.increment(at - now);
            now = at;
        };

        set_clock(0);
        let rank = u32::try_from(count(&case["rank"])).unwrap();
        let builder = builder().with_rank(rank).with_clock(clock).with_interval(seconds(&case["interval_s"]));
        let (handle, _default) = set_default(builder);
        let device = Device::default();
        let _attached = handle.attach("0", device.source()).unwrap();
        let counters = &case["counters"];
        device.set(count(&counters["accepted"]), count(&counters["emitted"]));
        let resolved = || {
            let engines = handle.totals().engines;
            let collections = engines.iter().flat_map(|engine| engine.collections.clone());
            collections.filter(|(outcome, ..)| *outcome == "resolved").map(|(.., count)| count).sum::<u64>()
        };

        for (call, expected) in case["expected"].as_array().unwrap().iter().enumerate() {
            set_clock(call + 1);
            // All drafts belong to the first step, so that they lie before the first copy, as the device's counts do.
            let (k, draft) = (count(&case["k"]), if call == 0 { count(&counters["draft"]) } else { 0 });
            let span = step_span!(num_spec_tokens = k, num_drafts = draft / k);
            let before = resolved();
            span.in_scope(|| {
                let new = resolved() - before;
                assert_eq!(new == 1, expected.as_str() == Some("metrics"), "{name}, call {}", call + 1);
            });
        }
        if let Some(expected) = case.get("expected_metrics") {
            let metrics = handle.metrics("0").unwrap();
            assert_eq!(metrics.num_spec_tokens, Some(count(&expected["num_spec_tokens"])), "{name}");
            assert_eq!(metrics.max_emitted_tokens().unwrap_or_default(), count(&expected["max_emitted"]), "{name}");
            assert_printed(metrics.draft_acceptance_rate(), &expected["rate"], &expected["decimals"], name);
            assert_printed(metrics.system_efficiency(), &expected["efficiency"], &expected["decimals"], name);
        }
    }
}

#[test]
fn v0s_values_to_the_printed_digits() {
    for case in vectors("v0_values") {
        let source = case["source"].as_str().unwrap();
        let metrics = SpecDecodeMetrics {
            num_spec_tokens: Some(count(&case["k"])),
            drafts: Some(count(&case["drafts"])),
            draft_tokens: Some(count(&case["draft"])),
            accepted_tokens: Some(count(&case["accepted"])),
            emitted_tokens: Some(count(&case["emitted"])),
            ..SpecDecodeMetrics::default()
        };
        assert_eq!(metrics.max_emitted_tokens(), Some(count(&case["max_emitted"])), "{source}");
        assert_printed(metrics.draft_acceptance_rate(), &case["rate"], &case["decimals"], source);
        assert_printed(metrics.system_efficiency(), &case["efficiency"], &case["decimals"], source);
        if let Some(prefix) = case.get("accepted_prefix") {
            let metrics = SpecDecodeMetrics { accepted_tokens: Some(count(prefix)), ..metrics };
            assert_eq!(Some(metrics.draft_acceptance_rate()), case["prefix_rate"].as_f64(), "{source}");
        }
    }
}

/// One step with these drafts, each (drafted, accepted), through a span, `HostCounters` and the exporter.
fn observe(k: u64, drafts: &[(u32, u32)]) -> (SpecDecodeMetrics, Points, Vec<bool>) {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    let mut counters = HostCounters::new();
    let _attached = handle.attach("0", counters.source()).unwrap();
    let tokens: u32 = drafts.iter().map(|(drafted, _)| drafted).sum();
    let span = step_span!(num_spec_tokens = k, num_drafts = drafts.len(), num_draft_tokens = tokens);
    let counted = span.in_scope(|| {
        drafts.iter().map(|&(drafted, accepted)| counters.record_draft(drafted, accepted, accepted + 1)).collect()
    });
    drop(span);
    (handle.metrics("0").unwrap(), exported.collect(), counted)
}

fn assert_observed(k: u64, drafts: &[(u32, u32)], expected: &Value, name: &str) {
    let (metrics, points, _) = observe(k, drafts);
    for (what, metric, computed) in [
        ("drafts", "drafts", metrics.drafts),
        ("draft_tokens", "draft_tokens", metrics.draft_tokens),
        ("accepted_tokens", "accepted_tokens", metrics.accepted_tokens),
    ] {
        assert_eq!(computed, Some(count(&expected[what])), "{name}: {what}");
        assert_eq!(points[&of_engine(metric)], count(&expected[what]) as f64, "{name}: {what}");
    }
    for (what, metric, computed) in [
        ("accepted_per_pos", "accepted_tokens_per_position", &metrics.accepted_per_position),
        ("draft_per_pos", "draft_tokens_per_position", &metrics.draft_per_position),
    ] {
        let Some(expected) = counts(&expected[what]) else { continue };
        // As many positions as the largest k has: zeros at the end may be left out of a vector, or be in it.
        let computed = computed.as_ref().unwrap();
        let padded = |counts: &[u64]| (0..16).map(|at| counts.get(at).copied().unwrap_or(0)).collect::<Vec<_>>();
        assert_eq!(padded(computed), padded(&expected), "{name}: {what}");
        for (position, count) in computed.iter().enumerate() {
            assert_eq!(points[&of_position(metric, position)], *count as f64, "{name}: {what}");
        }
    }
    assert!(!points.keys().any(|name| name.contains("_total")));
}

#[test]
fn v1s_observed_drafts() {
    for case in vectors("v1_observe") {
        let name = case["name"].as_str().unwrap();
        let pairs = case.get("observe").and_then(Value::as_array).cloned().unwrap_or_default();
        let pair = |value: &Value| (count(&value[0]) as u32, count(&value[1]) as u32);
        let drafts: Vec<_> = pairs.iter().map(pair).collect();
        match case["kind"].as_str().unwrap() {
            "error" => {
                // V1 asserts; here the step is an anomaly.
                let (_, points, _) = observe(count(&case["k"]), &drafts);
                assert_eq!(points[&anomaly("drafts_inconsistent")], 1.0, "{name}");
            }
            "merge" => {
                let part = |part: &Value| SpecDecodeMetrics {
                    drafts: Some(count(&part["drafts"])),
                    accepted_per_position: counts(&part["accepted_per_pos"]),
                    ..SpecDecodeMetrics::default()
                };
                let merged = part(&case["merge"][0]).merged(&part(&case["merge"][1]));
                assert_eq!(merged, part(&case["expected"]), "{name}");
            }
            "prometheus_disabled" => {
                // Without a provider observing is a step like any other, and nothing is exported.
                let (stack, handle) = stack_of(builder());
                let exported = Exported::cumulative();
                tracing::dispatcher::with_default(&stack, || {
                    drop(step_span!(num_spec_tokens = 3, num_drafts = 1, num_accepted_tokens = 2));
                });
                assert_eq!(handle.status("0").steps, 1, "{name}");
                assert!(exported.collect().is_empty(), "{name}");
            }
            "log" if case["expected"].is_null() => {
                // V1 logs nothing; here a line of nothing known, and no ratio is a number.
                let nothing = SpecDecodeMetrics::default();
                assert!(nothing.mean_acceptance_length().is_nan() && nothing.to_string().contains("unknown"), "{name}");
            }
            _ => {
                assert_observed(count(&case["k"]), &drafts, &case["expected"], name);
                if let Some(length) = case["expected"]["mean_acceptance_length"].as_f64() {
                    let (metrics, points, _) = observe(count(&case["k"]), &drafts);
                    assert_eq!(metrics.mean_acceptance_length(), length, "{name}");
                    assert_eq!(metrics.since(&metrics).drafts, Some(0), "{name}: the interval is empty after it");
                    assert!(points.contains_key(&of_engine("drafts")));
                }
            }
        }
    }
}

#[test]
fn v1s_schedule() {
    for case in vectors("v1_scheduler") {
        let lengths = |what: &str| -> Vec<u32> {
            case[what].as_array().unwrap().iter().map(|tokens| tokens.as_array().unwrap().len() as u32).collect()
        };
        let drafts: Vec<_> =
            lengths("drafted").into_iter().zip(lengths("output").into_iter().map(|len| len - 1)).collect();
        let verified: Vec<_> = drafts.into_iter().filter(|(drafted, _)| *drafted > 0).collect();
        let k = verified.iter().map(|(drafted, _)| *drafted).max().unwrap_or(1);
        assert_observed(k.into(), &verified, &case["expected"], &case["drafted"].to_string());
    }
}

#[test]
fn figures_of_public_bug_reports() {
    for case in vectors("real_data") {
        let source = case["source"].as_str().unwrap();
        let histogram = counts(&case["acceptance_histogram"]);
        let metrics = SpecDecodeMetrics {
            num_spec_tokens: Some(count(&case["k"])),
            drafts: Some(count(&case["drafts"])),
            draft_tokens: Some(count(&case["draft_tokens"])),
            accepted_tokens: Some(count(&case["accepted_tokens"])),
            emitted_tokens: case["emitted_tokens"].as_u64(),
            accepted_per_position: counts(&case["accepted_per_pos"]),
            ..SpecDecodeMetrics::default()
        };
        if let Some(histogram) = histogram {
            assert_eq!(Some(histogram.iter().sum()), metrics.drafts, "{source}");
            let accepted: u64 = (0..).zip(&histogram).map(|(tokens, drafts)| tokens * drafts).sum();
            assert_eq!(Some(accepted), metrics.accepted_tokens, "{source}");
        }
        for printed in case["printed"].as_array().unwrap() {
            let (value, decimals) = (&printed["value"], &printed["decimals"]);
            match printed["quantity"].as_str().unwrap() {
                "draft_acceptance_rate" => assert_printed(metrics.draft_acceptance_rate(), value, decimals, source),
                "draft_acceptance_rate_percent" => {
                    assert_printed(100.0 * metrics.draft_acceptance_rate(), value, decimals, source);
                }
                "mean_acceptance_length" => assert_printed(metrics.mean_acceptance_length(), value, decimals, source),
                "per_position_rate_by_drafts" => {
                    let by_drafts = metrics.accepted_per_position.iter().flatten();
                    let by_drafts = by_drafts.map(|&accepted| accepted as f64 / metrics.drafts.unwrap() as f64);
                    for (computed, value) in by_drafts.zip(value.as_array().unwrap()) {
                        assert_printed(computed, value, decimals, source);
                    }
                }
                other => unreachable!("{other} is no quantity of the vectors"),
            }
        }
    }
}
