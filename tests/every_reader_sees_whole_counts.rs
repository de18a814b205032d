//! Readers of both temporalities, idle engines, and providers and layers that go in any order.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use opentelemetry_sdk::metrics::Temporality;
use support::{Device, Exported, Points, Stack, of_engine, of_position, set_default, stack_of};
use tracing_spec_decode::{HostCounters, builder, step_span};

const COUNTERS: [&str; 4] = ["drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"];
const GAUGES: [&str; 4] = ["draft_acceptance_rate", "system_efficiency", "mean_acceptance_length", "num_spec_tokens"];

fn step(accepted: u32) {
    drop(step_span!(
        num_spec_tokens = 5,
        num_drafts = 1,
        num_accepted_tokens = accepted,
        num_emitted_tokens = accepted + 1
    ));
}

fn has(points: &Points, names: &[&str]) -> Vec<bool> {
    names.iter().map(|name| points.contains_key(&of_engine(name))).collect()
}

#[test]
fn deltas_of_one_reader_add_up_to_the_totals_of_another() {
    let exported = Exported::new(&[Temporality::Cumulative, Temporality::Delta, Temporality::LowMemory]);
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    let mut deltas = Points::new();
    for round in 0..7 {
        (0..round).for_each(|accepted| step(accepted % 6));
        let each = exported.collect_each();
        assert_eq!(has(&each[0], &COUNTERS), has(&each[1], &COUNTERS));
        for (name, delta) in &each[1] {
            assert!(*delta >= 0.0, "{name} fell");
            *deltas.entry(name.clone()).or_default() += delta;
        }
        for name in COUNTERS.map(of_engine) {
            assert_eq!(each[0].get(&name), deltas.get(&name), "{name} in round {round}");
            assert_eq!(each[2].get(&name), each[0].get(&name), "cumulative for what is observed");
        }
    }
    assert_eq!(deltas[&of_engine("drafts")], 21.0);
    assert_eq!(handle.metrics("0").unwrap().drafts, Some(21));
}

#[test]
fn an_idle_engine_keeps_its_counters_and_loses_its_gauges() {
    let stack = Stack::new();
    for _ in 0..1_100 {
        stack.pass(10);
        step(3);
    }
    let busy = stack.collect();
    assert_eq!(has(&busy, &GAUGES), [true; 4]);
    stack.pass(9_000);
    assert_eq!(has(&stack.collect(), &GAUGES), [true; 4], "ten seconds, or two intervals, after the window's end");
    stack.pass(60_000);
    for _ in 0..3 {
        let idle = stack.collect();
        assert_eq!(has(&idle, &GAUGES), [false; 4], "a rate of a minute ago is not shown");
        for name in COUNTERS.map(of_engine) {
            assert_eq!(idle[&name], busy[&name]);
        }
    }
    step(3);
    step(3);
    let busy_again = stack.collect();
    assert_eq!(busy_again[&of_engine("drafts")], 1_102.0);
    assert_eq!(busy_again[&of_engine("draft_acceptance_rate")], 0.6);
}

#[test]
fn a_window_without_drafts_has_no_gauges_and_a_flush_ends_one_that_has_some() {
    let stack = Stack::new();
    step(5);
    stack.handle.flush(Duration::ZERO).unwrap();
    assert_eq!(stack.collect()[&of_engine("draft_acceptance_rate")], 1.0);
    stack.handle.flush(Duration::ZERO).unwrap();
    assert_eq!(stack.collect()[&of_engine("draft_acceptance_rate")], 1.0, "an empty window is not ended early");
    for _ in 0..2 {
        stack.pass(6_000);
        drop(step_span!(num_spec_tokens = 0));
    }
    assert_eq!(has(&stack.collect(), &GAUGES), [false; 4]);
    stack.pass(1_000);
    step(1);
    stack.handle.flush(Duration::ZERO).unwrap();
    assert_eq!(stack.collect()[&of_engine("draft_acceptance_rate")], 0.2, "of this window's steps alone");
}

#[test]
fn a_flush_ends_the_window_of_an_engine_with_a_source_too() {
    for on_host in [false, true] {
        let stack = Stack::new();
        let (device, mut counters) = (Device::default(), HostCounters::new());
        let _attached = if on_host {
            stack.handle.attach("0", counters.source()).unwrap()
        } else {
            stack.handle.attach("0", device.source()).unwrap()
        };
        for accepted in [4, 1] {
            stack.pass(100);
            step_span!(num_spec_tokens = 5, num_drafts = 1).in_scope(|| {
                device.add(accepted, accepted + 1);
                assert!(counters.record_draft(5, accepted, accepted + 1));
            });
            stack.flush();
            let points = stack.collect();
            assert_eq!(has(&points, &GAUGES), [true; 4], "on the host: {on_host}");
            assert_eq!(points[&of_engine("draft_acceptance_rate")], accepted as f64 / 5.0, "on the host: {on_host}");
        }
    }
}

#[test]
fn a_quantity_that_one_step_did_not_give_takes_its_gauge_for_that_window() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    step(3);
    drop(step_span!(num_spec_tokens = 5, num_drafts = 1, num_accepted_tokens = 2));
    handle.flush(Duration::ZERO).unwrap();
    let points = exported.collect();
    assert_eq!(has(&points, &GAUGES), [true, false, true, true]);
    assert_eq!(points[&support::anomaly("emitted_unknown")], 1.0);
    step(3);
    handle.flush(Duration::ZERO).unwrap();
    assert_eq!(has(&exported.collect(), &GAUGES), [true; 4]);
}

#[test]
fn a_provider_that_is_shut_down_first_takes_nothing_with_it() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    step(3);
    exported.provider.shutdown().unwrap();
    assert_eq!(exported.exported()[0][&of_engine("drafts")], 1.0, "the shutdown exports");
    step(3);
    handle.flush(Duration::ZERO).unwrap();
    assert_eq!(handle.metrics("0").unwrap().drafts, Some(2));
}

#[test]
fn a_layer_that_is_dropped_first_leaves_its_counters_to_the_provider() {
    let exported = Exported::new(&[Temporality::Cumulative, Temporality::Delta]);
    let (stack, handle) = stack_of(builder().with_meter_provider(&exported.provider));
    tracing::dispatcher::with_default(&stack, || step(3));
    assert_eq!(exported.collect_each()[1][&of_engine("drafts")], 1.0);
    tracing::dispatcher::with_default(&stack, || step(3));
    drop((stack, handle));
    let each = exported.collect_each();
    assert_eq!((each[0][&of_engine("drafts")], each[1][&of_engine("drafts")]), (2.0, 1.0));
    let each = exported.collect_each();
    assert_eq!((each[0][&of_engine("drafts")], each[1][&of_engine("drafts")]), (2.0, 0.0), "observed every time");
}

#[test]
fn counters_go_on_across_detach_and_attach() {
    let exported = Exported::new(&[Temporality::Cumulative, Temporality::Delta]);
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    let mut sum = 0.0;
    for round in 1..=5 {
        // Sources of different layouts: what one counted goes on as it was when the next does not count it.
        let mut counters = HostCounters::with_positions(round);
        let attached = handle.attach("0", counters.source()).unwrap();
        assert!(counters.record_draft(4, 2, 3));
        step(1);
        handle.flush(Duration::from_secs(1)).unwrap();
        drop(attached);
        step(1);
        let each = exported.collect_each();
        assert_eq!(each[0][&of_engine("accepted_tokens")], 3.0 * round as f64);
        assert_eq!(each[0][&of_position("accepted_tokens_per_position", 0)], round as f64);
        sum += each[1][&of_engine("accepted_tokens")];
        assert!(each[1].values().all(|delta| *delta >= 0.0));
    }
    assert_eq!(sum, 15.0);
}

#[test]
fn two_layers_on_one_provider_are_told_apart_by_their_instance() {
    let exported = Exported::cumulative();
    let make = |instance: &str| stack_of(builder().with_meter_provider(&exported.provider).with_instance(instance)).0;
    let (one, two) = (make("one"), make("two"));
    tracing::dispatcher::with_default(&one, || step(1));
    tracing::dispatcher::with_default(&two, || (0..3).for_each(|_| step(1)));
    let points = exported.collect();
    assert_eq!(points["spec_decode.drafts@one{spec_decode.engine=0}"], 1.0);
    assert_eq!(points["spec_decode.drafts@two{spec_decode.engine=0}"], 3.0);
}

#[test]
fn nothing_is_exported_where_nothing_is_decoded_speculatively() {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    for _ in 0..100 {
        tracing::info_span!("request").in_scope(|| tracing::info!(num_spec_tokens = 5, "spec_decode_step"));
    }
    assert_eq!(exported.collect(), Points::new());
    assert_eq!(handle.totals(), tracing_spec_decode::Totals::default());
}
