//! Counts of every integer type are read, and what is no count makes its field absent: it is never wrapped.
#![allow(missing_docs)]

mod support;

use support::{Exported, anomaly, set_default};
use tracing::field::Empty;
use tracing::info_span;
use tracing_spec_decode::{Handle, builder, step_span};

fn with_layer<T>(test: impl FnOnce(&Handle, &Exported) -> T) -> T {
    let exported = Exported::cumulative();
    let (handle, _default) = set_default(builder().with_meter_provider(&exported.provider));
    test(&handle, &exported)
}

#[test]
fn every_integer_type_is_a_count() {
    with_layer(|handle, exported| {
        macro_rules! step {
            ($($type:ty),*) => {$(
                drop(step_span!(num_spec_tokens = 5 as $type, num_drafts = 1 as $type, num_accepted_tokens = 2 as $type));
                let late = step_span!(num_spec_tokens = 5 as $type, num_drafts = 1 as $type);
                late.record("num_accepted_tokens", 3 as $type);
                drop(late);
            )*};
        }
        step!(u8, i8, u16, i16, u32, i32, u64, i64, u128, i128, usize, isize);
        let metrics = handle.metrics("0").unwrap();
        assert_eq!((metrics.drafts, metrics.draft_tokens, metrics.accepted_tokens), (Some(24), Some(120), Some(60)));
        assert_eq!(exported.collect().keys().filter(|name| name.starts_with("spec_decode.anomalies")).count(), 0);
    });
}

#[test]
fn what_is_no_count_makes_its_field_absent_and_is_counted() {
    with_layer(|handle, exported| {
        let mut refused = 0.0;
        macro_rules! refuse {
            ($($value:expr),* $(,)?) => {$(
                drop(info_span!("spec_decode_step", num_spec_tokens = 5, num_drafts = 1, num_accepted_tokens = $value));
                let late = info_span!("spec_decode_step", num_spec_tokens = 5, num_drafts = 1, num_accepted_tokens = 2);
                late.record("num_accepted_tokens", $value);
                drop(late);
                refused += 2.0;
            )*};
        }
        let error = std::fmt::Error;
        refuse!(-1, i64::MIN, u64::MAX, u64::from(u32::MAX) + 1, i128::MAX, i128::MIN, u128::MAX, 2.0, f64::NAN, true);
        refuse!("5", "", tracing::field::debug(5), tracing::field::display(5), &error as &dyn std::error::Error);
        refuse!(&[1_u8, 2][..]);
        let points = exported.collect();
        assert_eq!(points[&anomaly("invalid_value")], refused);
        assert_eq!(points[&anomaly("incomplete")], refused);
        assert_eq!(handle.metrics("0").unwrap().draft_tokens, None);
        assert_eq!(handle.status("0").steps, refused as u64);
    });
}

#[test]
fn the_last_record_of_a_field_holds_also_after_a_refused_one() {
    with_layer(|handle, _| {
        let span = step_span!(num_spec_tokens = 5, num_drafts = 2, num_accepted_tokens = 9);
        for value in [-1, 3, 4] {
            span.record("num_accepted_tokens", value);
        }
        span.record("no_such_field", 8);
        drop(span);
        assert_eq!(handle.metrics("0").unwrap().accepted_tokens, Some(4));
    });
}

#[test]
fn the_largest_counts_add_up_without_a_wrap() {
    with_layer(|handle, exported| {
        for _ in 0..3 {
            drop(step_span!(
                num_spec_tokens = u32::MAX,
                num_drafts = u32::MAX,
                num_draft_tokens = u32::MAX,
                num_accepted_tokens = u32::MAX,
                num_emitted_tokens = u32::MAX,
                num_discarded_draft_tokens = u32::MAX
            ));
        }
        let tokens = 3 * u64::from(u32::MAX);
        let metrics = handle.metrics("0").unwrap();
        assert_eq!((metrics.draft_tokens, metrics.emitted_tokens), (Some(tokens), Some(tokens)));
        // k times the drafts is more than fits, and is only a bound here.
        drop(step_span!(num_spec_tokens = u32::MAX, num_drafts = u32::MAX, num_accepted_tokens = 1));
        assert!(handle.metrics("0").unwrap().draft_tokens >= Some(tokens));
        assert!(exported.collect().values().all(|value| value.is_finite()));
    });
}

#[test]
fn an_engine_is_named_by_a_string_a_number_display_or_debug() {
    with_layer(|handle, exported| {
        let name = String::from("main");
        let engine = "main";
        drop(step_span!(engine = "main"));
        drop(step_span!(engine = name.as_str()));
        drop(step_span!(engine = %name));
        drop(step_span!(engine = ?name, num_drafts = 0));
        drop(step_span!(engine, num_drafts = 0,));
        drop(step_span!(parent: None, engine = %format_args!("{}{}", "ma", "in")));
        assert_eq!(handle.status("main").steps, 6);

        drop(step_span!());
        drop(step_span!(engine = 0));
        drop(step_span!(engine = "0"));
        drop(step_span!(engine = %0, num_drafts = 0));
        assert_eq!(handle.status("0").steps, 4);

        for name in ["x".repeat(64), "ü".repeat(32)] {
            drop(step_span!(engine = name.as_str()));
            assert_eq!(handle.status(&name).steps, 1);
        }
        let mut refused = 0.0;
        for name in ["x".repeat(65), "ü".repeat(33), "x".repeat(1_000_000), String::new()] {
            drop(step_span!(engine = name.as_str()));
            drop(step_span!(engine = %name));
            drop(step_span!(engine = ?name));
            refused += 3.0;
        }
        drop(step_span!(engine = -1));
        drop(step_span!(engine = 1.5));
        drop(step_span!(engine = false));
        let points = exported.collect();
        assert_eq!(points["spec_decode.anomalies{spec_decode.anomaly.type=engine_refused}"], refused + 3.0);
    });
}

#[test]
fn an_identity_that_comes_late_is_ignored_and_counted() {
    with_layer(|handle, exported| {
        let span = step_span!(num_drafts = 0);
        span.record("engine", "other");
        span.record("rank", 1);
        drop(span);
        assert_eq!(handle.status("0").steps, 1);
        assert_eq!(handle.status("other").steps, 0);
        assert_eq!(exported.collect()[&anomaly("late_identity")], 2.0);

        let undeclared = info_span!("spec_decode_step", num_drafts = Empty, rank = "one");
        drop(undeclared);
        assert_eq!(exported.collect()[&anomaly("invalid_value")], 1.0, "a rank that is none counts as 0");
    });
}
