//! Whether speculation pays, and which k would: against published runs, Leviathan et al.'s closed form, and the sums
//! written out; and that what can't be known is absent.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tracing_spec_decode::{Basis, Estimate, Payoff, SpecDecodeMetrics, StepTotals};

/// Steps of one sequence each, as many as tokens where there are no drafts.
fn steps(steps: u64, seconds: f64, tokens: u64) -> StepTotals {
    StepTotals { steps, time: Duration::from_secs_f64(seconds), sequences: Some(steps), tokens: Some(tokens) }
}

/// An engine that drafts `k` tokens at a time.
fn engine(drafts: u64, k: u64, accepted: u64) -> SpecDecodeMetrics {
    SpecDecodeMetrics {
        drafts: Some(drafts),
        draft_tokens: Some(drafts * k),
        accepted_tokens: Some(accepted),
        emitted_tokens: Some(drafts + accepted),
        drafted_steps: steps(drafts, drafts as f64, drafts + accepted),
        plain_steps: steps(100, 100.0, 100),
        ..SpecDecodeMetrics::default()
    }
}

const MANY: u64 = 1 << 40;

/// An engine of this conditional acceptance by position, with a plain step of 1 s, `draft` s per draft token and
/// `verify` s per step.
fn modelled(conditional: &[f64], draft: f64, verify: f64) -> SpecDecodeMetrics {
    let k = conditional.len() as u64;
    let survival = conditional.iter().scan(MANY as f64, |survival, conditional| {
        *survival *= conditional;
        Some(survival.round() as u64)
    });
    let accepted: Vec<u64> = survival.collect();
    let tokens_per_draft = 1.0 + accepted.iter().map(|&accepted| accepted as f64 / MANY as f64).sum::<f64>();
    SpecDecodeMetrics {
        accepted_per_position: Some(accepted.clone()),
        draft_per_position: Some(vec![MANY; conditional.len()]),
        drafted_steps: steps(1000, 1000.0 * (draft * k as f64 + verify), (1000.0 * tokens_per_draft) as u64),
        plain_steps: steps(1000, 1000.0, 1000),
        draft_time: Duration::from_secs_f64(1000.0 * draft * k as f64),
        verify_time: Duration::from_secs_f64(1000.0 * verify * 0.9),
        ..engine(MANY, k, accepted.iter().sum())
    }
}

fn printed(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "unknown".to_string(), |value| format!("{value:.digits$}"))
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-6 * one.abs().max(other.abs())
}

/// Runs of llama.cpp that were published with the engine's own speed without drafts: issue 3649 (7B and 160M on a V100),
/// issue 5877 (8B and 1B on an RTX 3060), pull request 10455 (32B and 3B on an M4 Pro, "about 11" without).
#[test]
fn published_runs_give_their_published_speeds() {
    //  k, drafted, accepted, tokens, seconds, plain tokens per second; tokens per second, speed-up
    let runs = [
        (5, 260, 208, 261, 2.967, 52.5, "88", "1.68"),
        (5, 730, 526, 673, 12.132, 32.49, "55", "1.71"),
        (16, 912, 313, 371, 34.412, 11.0, "11", "0.98"),
    ];
    for (k, drafted, accepted, tokens, seconds, plain, speed, speedup) in runs {
        let drafts = drafted / k;
        let metrics = SpecDecodeMetrics {
            emitted_tokens: Some(tokens),
            drafted_steps: steps(drafts, seconds, tokens),
            plain_steps: steps(1000, 1000.0 / plain, 1000),
            ..engine(drafts, k, accepted)
        };
        let payoff = metrics.payoff();
        assert_eq!(printed(payoff.tokens_per_second_with_drafts(), 0), speed);
        assert!(close(payoff.tokens_per_second_without_drafts().unwrap(), plain));
        assert_eq!(printed(payoff.speedup(), 2), speedup);
        assert_eq!((payoff.drafted_steps(), payoff.plain_steps()), (drafts, 1000));
    }
}

/// rMLX issue 496 lists acceptance and k with the geometric sum; llama.cpp issue 3649 an α, a k and a c with the
/// speed-up that the paper's formula gives.
#[test]
fn published_expectations_are_met() {
    for (acceptance, k, tokens_per_draft) in [(0.877, 2, "2.65"), (0.895, 3, "3.41"), (0.731, 6, "3.30")] {
        let payoff = modelled(&vec![acceptance; k as usize], 0.1, 1.0).payoff();
        assert_eq!(printed(payoff.tokens_per_draft(k).map(|tokens| tokens.value), 2), tokens_per_draft);
    }
    let payoff = modelled(&[0.44; 5], 0.11, 1.0).payoff();
    assert_eq!(printed(payoff.expected_speedup(5).map(|speedup| speedup.value), 2), "1.14");
}

/// The log line of llama.cpp pull request 24536: a mean acceptance length of 2.92, rates per position of 0.805, 0.632
/// and 0.483 of 87 drafts, 259 tokens drafted, 167 accepted, 256 generated, in 2296.72 ms.
#[test]
fn a_run_without_a_baseline_says_nothing_of_the_speed_up() {
    let metrics = SpecDecodeMetrics {
        draft_tokens: Some(259),
        accepted_per_position: Some(vec![70, 55, 42]),
        draft_per_position: Some(vec![87, 86, 86]),
        drafted_steps: steps(87, 2.29672, 256),
        plain_steps: StepTotals::default(),
        draft_time: Duration::from_secs_f64(0.325_555),
        ..engine(87, 3, 167)
    };
    let payoff = metrics.payoff();
    // Above the mean over all drafts, 2.92, since one of them was too short for three.
    let tokens = payoff.tokens_per_draft(3).unwrap();
    assert_eq!((format!("{:.2}", tokens.value), tokens.basis), ("2.93".to_string(), Basis::PerPosition));
    assert_eq!(printed(payoff.tokens_per_second_with_drafts(), 2), "111.46");
    assert_eq!(payoff.tokens_per_second_without_drafts(), None);
    assert_eq!(payoff.speedup(), None);
    assert_eq!(payoff.step_cost(), None);
    assert!((0..9).all(|k| payoff.expected_speedup(k).is_none()));
    assert_eq!(payoff.best_num_spec_tokens(8), None);
    assert_eq!(payoff.break_even_acceptance(), None);
    assert_eq!(
        payoff.to_string(),
        "measured speed-up unknown, mean k 2.98, best unknown, break-even acceptance unknown, tokens per \
         second with drafts 111.46, without unknown, batch ratio unknown, from 87 steps with drafts and 0 without"
    );
}

/// llama.cpp issue 3649 puts its acceptance rate of 0.8 for α and expects 2.16; its run gave 5 tokens per draft.
#[test]
fn the_acceptance_rate_is_not_the_conditional_acceptance() {
    let payoff = engine(52, 5, 208).payoff();
    let tokens = payoff.tokens_per_draft(5).unwrap();
    assert!(close(tokens.value, 5.0));
    assert_eq!(tokens.basis, Basis::ConstantAcceptance);
    assert_eq!(printed(payoff.tokens_per_draft(1).map(|tokens| tokens.value - 1.0), 2), "0.93");
}

/// vllm-mlx issue 699: a mixture of experts verifies 1, 2, 3, 5 and 8 tokens in 8.47, 13.49, 15.64, 20.67 and 28.13 ms.
#[test]
fn verification_that_grows_with_k_flatters_a_larger_k() {
    let verify = |tokens: u64| match tokens {
        2 => 13.49 / 8.47,
        5 => 20.67 / 8.47,
        8 => 28.13 / 8.47,
        _ => unreachable!(),
    };
    let at = |k: u64| {
        let payoff = modelled(&[0.8; 7][..k as usize], 0.05, verify(k + 1)).payoff();
        move |k: u64| payoff.expected_speedup(k).unwrap().value
    };
    assert!(at(4)(1) < at(1)(1));
    assert!(at(4)(7) > at(7)(7));
}

#[test]
fn the_log_line_says_what_is_best_and_how_that_is_known() {
    let halves = modelled(&[0.9, 0.5], 0.1, 1.2);
    assert_eq!(
        halves.payoff().to_string(),
        "measured speed-up 1.679, mean k 2.00, best 3 (expected speed-up 1.717, +2.3 %, extrapolated), \
         break-even acceptance 0.306, tokens per second with drafts 1.68, without 1.00, batch ratio 1.00, from 1000 \
         steps with drafts and 1000 without"
    );
    let constant = SpecDecodeMetrics { draft_per_position: None, ..halves.clone() };
    assert!(constant.payoff().to_string().contains(", at constant acceptance), "));
    let never = modelled(&[0.1, 0.1], 0.1, 1.2).payoff();
    assert!(never.to_string().contains("best 0 (expected speed-up 1.000, +26."), "{never}");
    let large = SpecDecodeMetrics { draft_time: Duration::from_secs(9), ..engine(100, 600, 200) }.payoff();
    assert!(large.to_string().contains("best 18 (expected speed-up 3.285, "), "{large}");
}

#[test]
fn too_few_steps_say_nothing() {
    let few = Payoff::MIN_STEPS - 1;
    let enough = SpecDecodeMetrics { draft_time: Duration::from_secs(9), ..engine(100, 4, 200) };
    let known = |metrics: &SpecDecodeMetrics| {
        let payoff = metrics.payoff();
        let value = |estimate: Option<Estimate>| estimate.map(|estimate| estimate.value);
        let of_drafted =
            [payoff.tokens_per_second_with_drafts(), payoff.num_spec_tokens(), value(payoff.tokens_per_draft(4))];
        let of_both = [
            payoff.speedup(),
            payoff.step_cost(),
            payoff.batch_ratio(),
            payoff.break_even_acceptance(),
            value(payoff.expected_speedup(0)),
            value(payoff.expected_speedup(4)),
            payoff.best_num_spec_tokens(8).map(|best| best.margin),
        ];
        let of_plain = [payoff.tokens_per_second_without_drafts()];
        [&of_drafted[..], &of_plain, &of_both].map(|values| {
            let known = values.iter().flatten().count();
            assert!(known == 0 || known == values.len(), "{payoff}");
            known > 0
        })
    };
    assert_eq!(known(&enough), [true, true, true]);
    let plain = SpecDecodeMetrics { plain_steps: steps(few, 9.0, few), ..enough.clone() };
    assert_eq!(known(&plain), [true, false, false]);
    let drafted = SpecDecodeMetrics { drafted_steps: steps(few, 9.0, few), ..enough.clone() };
    assert_eq!(known(&drafted), [false, true, false]);
    // Most of the steps with drafts were counted as incomplete.
    let counts = SpecDecodeMetrics { drafted_steps: enough.drafted_steps, ..engine(few, 4, 60) }.payoff();
    assert!(counts.step_cost().is_some() && counts.speedup().is_none() && counts.expected_speedup(4).is_none());
}

#[test]
fn contradictions_and_gaps_are_unknown() {
    let good = SpecDecodeMetrics { draft_time: Duration::from_secs(9), ..modelled(&[0.8, 0.7], 0.1, 1.0) };
    assert!(good.payoff().best_num_spec_tokens(8).is_some());
    let expects_nothing = [
        SpecDecodeMetrics { accepted_tokens: Some(2 * MANY + 1), ..good.clone() },
        SpecDecodeMetrics { draft_tokens: Some(MANY - 1), accepted_tokens: Some(9), ..good.clone() },
        SpecDecodeMetrics { draft_tokens: Some(MANY * 1025), ..good.clone() },
        SpecDecodeMetrics { accepted_per_position: Some(vec![MANY + 1, 0]), ..good.clone() },
        SpecDecodeMetrics { accepted_per_position: Some(vec![5, 4, 3]), ..good.clone() },
        SpecDecodeMetrics { drafts: None, ..good.clone() },
        SpecDecodeMetrics { accepted_tokens: None, ..good.clone() },
        SpecDecodeMetrics { drafted_steps: StepTotals { time: Duration::ZERO, ..good.drafted_steps }, ..good.clone() },
        SpecDecodeMetrics { plain_steps: StepTotals { time: Duration::ZERO, ..good.plain_steps }, ..good.clone() },
    ];
    for metrics in expects_nothing {
        let payoff = metrics.payoff();
        assert!(payoff.expected_speedup(2).is_none() && payoff.best_num_spec_tokens(8).is_none(), "{metrics:?}");
    }
    for emitted in [None, Some(3 * MANY + 1)] {
        assert_eq!(SpecDecodeMetrics { emitted_tokens: emitted, ..good.clone() }.payoff().speedup(), None);
    }
    assert!(SpecDecodeMetrics { draft_tokens: None, ..good.clone() }.payoff().speedup().is_some());
    // Even with every draft token accepted, three tokens can't make up for four plain steps.
    let dear = SpecDecodeMetrics { drafted_steps: steps(100, 400.0, 0), ..good.clone() }.payoff();
    assert_eq!((dear.step_cost(), dear.break_even_acceptance()), (Some(4.0), None));
}

#[test]
fn without_draft_spans_only_the_k_in_use_is_known() {
    let longer = Duration::from_secs(10_000);
    for (draft_time, verify_time) in [(Duration::ZERO, Duration::from_secs(9)), (longer, Duration::ZERO)] {
        let payoff = SpecDecodeMetrics { draft_time, verify_time, ..modelled(&[0.8; 4], 0.1, 1.0) }.payoff();
        let known: Vec<u64> = (0..9).filter(|&k| payoff.expected_speedup(k).is_some()).collect();
        assert_eq!(known, [0, 4]);
        assert_eq!(payoff.best_num_spec_tokens(4), None);
        assert!(payoff.break_even_acceptance().is_some());
    }
}

#[test]
fn of_two_that_are_as_good_the_smaller_k_is_best() {
    // An acceptance equal to the cost: one draft token gains nothing, two lose.
    let best = modelled(&[0.5, 0.5], 0.5, 1.0).payoff().best_num_spec_tokens(2).unwrap();
    assert_eq!((best.num_spec_tokens, best.speedup.value), (0, 1.0));
}

#[test]
fn what_lies_beyond_the_counted_positions_is_said() {
    let metrics = modelled(&[0.8, 0.5, 0.5], 0.1, 1.0);
    // The third position was drafted too seldom to go by: a half, not nothing, of what reaches it is accepted.
    let (accepted, draft) = (Some(vec![80, 40, 0]), Some(vec![100, 100, Payoff::MIN_STEPS - 1]));
    let seldom = SpecDecodeMetrics { accepted_per_position: accepted, draft_per_position: draft, ..metrics.clone() };
    let payoff = seldom.payoff();
    let bases = [0, 1, 2, 3, 9].map(|k| payoff.tokens_per_draft(k).unwrap().basis);
    let [counted, extrapolated] = [Basis::PerPosition, Basis::Extrapolated];
    assert_eq!(bases, [counted, counted, counted, extrapolated, extrapolated]);
    assert!(close(payoff.tokens_per_draft(3).unwrap().value, 1.0 + 0.8 + 0.4 + 0.2));
    let all_seldom =
        SpecDecodeMetrics { draft_per_position: Some(vec![9, 9]), accepted_per_position: Some(vec![9, 0]), ..metrics };
    assert_eq!(all_seldom.payoff().tokens_per_draft(1).unwrap().basis, Basis::ConstantAcceptance);
    assert_eq!(payoff.tokens_per_draft(Payoff::MAX_NUM_SPEC_TOKENS + 1), None);
    assert_eq!(payoff.best_num_spec_tokens(u64::MAX), None);
}

/// Where k follows the acceptance, a late position is drafted for easy text only.
#[test]
fn a_later_position_is_not_taken_to_survive_more_often() {
    let metrics = SpecDecodeMetrics {
        accepted_per_position: Some(vec![600, 95]),
        draft_per_position: Some(vec![1000, 100]),
        ..modelled(&[0.6, 0.9], 0.1, 1.0)
    };
    assert!(close(metrics.payoff().tokens_per_draft(2).unwrap().value, 1.0 + 0.6 + 0.6));
}

fn any_steps() -> impl Strategy<Value = StepTotals> {
    (any_count(), any::<Duration>(), option::of(any_count()), option::of(any_count()))
        .prop_map(|(steps, time, sequences, tokens)| StepTotals { steps, time, sequences, tokens })
}

fn any_count() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, any::<u64>(), Just(u64::MAX)]
}

prop_compose! {
    fn any_metrics()(
        counts in [option::of(any_count()), option::of(any_count()), option::of(any_count()), option::of(any_count())],
        positions in [option::of(vec(any_count(), 0..6)), option::of(vec(any_count(), 0..6))],
        (drafted_steps, plain_steps) in (any_steps(), any_steps()),
        (draft_time, verify_time) in (any::<Duration>(), any::<Duration>()),
    ) -> SpecDecodeMetrics {
        let [drafts, draft_tokens, accepted_tokens, emitted_tokens] = counts;
        let [accepted_per_position, draft_per_position] = positions;
        SpecDecodeMetrics {
            num_spec_tokens: None, drafts, draft_tokens, accepted_tokens, emitted_tokens, accepted_per_position,
            draft_per_position, drafted_steps, plain_steps, draft_time, verify_time,
            ..SpecDecodeMetrics::default()
        }
    }
}

proptest! {
    #[test]
    fn whatever_the_counts_are_a_value_is_finite_or_absent(metrics in any_metrics(), k in any_count()) {
        let payoff = metrics.payoff();
        let best = payoff.best_num_spec_tokens(k);
        let estimates = [payoff.tokens_per_draft(k), payoff.expected_speedup(k), best.map(|best| best.speedup)];
        let values = [
            payoff.tokens_per_second_with_drafts(), payoff.tokens_per_second_without_drafts(), payoff.speedup(),
            payoff.step_cost(), payoff.batch_ratio(), payoff.num_spec_tokens(), best.map(|best| best.margin + 1.0),
        ];
        let all = estimates.into_iter().flatten().map(|estimate| estimate.value).chain(values.into_iter().flatten());
        for value in all {
            prop_assert!(value.is_finite() && value >= 0.0);
        }
        prop_assert!(payoff.break_even_acceptance().is_none_or(|acceptance| (0.0..=1.0).contains(&acceptance)));
        prop_assert!(!payoff.to_string().contains('\n'));
    }

    #[test]
    fn a_constant_acceptance_agrees_with_the_closed_form(
        acceptance in 0.0..0.99f64, c in 0.001..2.0f64, in_use in 1..=12usize, k in 1..=16u64, by_position in any::<bool>(),
    ) {
        let mut metrics = modelled(&vec![acceptance; in_use], c, 1.0);
        if !by_position {
            metrics.accepted_per_position = None;
        }
        let payoff = metrics.payoff();
        let tokens = (1.0 - acceptance.powi(k as i32 + 1)) / (1.0 - acceptance);
        let estimate = payoff.expected_speedup(k).unwrap();
        prop_assert!(close(payoff.tokens_per_draft(k).unwrap().value, tokens));
        prop_assert!(close(estimate.value, tokens / (c * k as f64 + 1.0)));
        let beyond = if k > in_use as u64 { Basis::Extrapolated } else { Basis::PerPosition };
        prop_assert_eq!(estimate.basis, if by_position { beyond } else { Basis::ConstantAcceptance });
    }

    /// Their corollary 3.9: where α is above c, some k makes it faster, by (1 + α) / (1 + c) at least.
    #[test]
    fn an_acceptance_above_the_cost_pays(acceptance in 0.0..0.99f64, c in 0.001..1.0f64, in_use in 1..=8usize) {
        let best = modelled(&vec![acceptance; in_use], c, 1.0).payoff().best_num_spec_tokens(16).unwrap();
        let least = (1.0 + acceptance) / (1.0 + c);
        prop_assert!(best.speedup.value >= least - 1e-6);
        prop_assert!((best.num_spec_tokens > 0) == (acceptance > c) || close(acceptance, c));
    }

    #[test]
    fn no_drafts_is_a_speed_up_of_one(
        conditional in vec(0.0..=1.0f64, 1..8), draft in 0.001..2.0f64, verify in 0.1..3.0f64,
    ) {
        let at_zero = modelled(&conditional, draft, verify).payoff().expected_speedup(0).unwrap();
        prop_assert_eq!((at_zero.value, at_zero.basis), (1.0, Basis::PerPosition));
    }

    #[test]
    fn more_acceptance_never_expects_less(
        conditional in vec((0.0..=1.0f64, 0.0..=1.0f64), 1..8), k in 0..8u64, draft in 0.001..2.0f64,
    ) {
        let (less, more): (Vec<f64>, Vec<f64>) = conditional.iter().map(|&(one, other)| (one.min(other), one.max(other))).unzip();
        let expected = |conditional: &[f64]| {
            let payoff = modelled(conditional, draft, 1.0).payoff();
            let k = k.min(conditional.len() as u64);
            (payoff.tokens_per_draft(k).unwrap().value, payoff.expected_speedup(k).unwrap().value)
        };
        let (less, more) = (expected(&less), expected(&more));
        prop_assert!(less.0 <= more.0 && less.1 <= more.1);
    }

    #[test]
    fn more_accepted_tokens_never_expect_less(accepted in 0..4000u64, more in 0..4000u64, k in 0..20u64) {
        let tokens = |accepted: u64| engine(1000, 4, accepted).payoff().tokens_per_draft(k).unwrap().value;
        let (less, more) = (accepted.min(more), accepted.max(more));
        prop_assert!(tokens(less) <= tokens(more));
    }

    #[test]
    fn the_best_k_is_the_one_that_trying_all_finds(
        conditional in vec(0.0..=1.0f64, 1..8), draft in 0.001..1.0f64, verify in 0.5..2.0f64,
    ) {
        let metrics = modelled(&conditional, draft, verify);
        let in_use = conditional.len();
        let speedup = |k: usize| {
            let survivals = (1..=k).map(|k| conditional[..k].iter().product::<f64>());
            if k == 0 { 1.0 } else { (1.0 + survivals.sum::<f64>()) / (draft * k as f64 + verify) }
        };
        let best = metrics.payoff().best_num_spec_tokens(in_use as u64).unwrap();
        let fastest = (0..=in_use).map(speedup).fold(0.0, f64::max);
        prop_assert!(close(best.speedup.value, fastest));
        prop_assert!(close(speedup(best.num_spec_tokens as usize), fastest));
        prop_assert!(close(best.margin + 1.0, fastest / speedup(in_use)));
        prop_assert!(best.margin >= 0.0);
    }

    /// One sequence at a time, all of whose tokens are emitted: the speed-up is that of the tokens per second.
    #[test]
    fn measured_speed_up_and_speeds_agree(k in 1..9u64, accepted in 0..=1000u64, seconds in 1.0..1e4f64) {
        let accepted = accepted * k;
        let metrics =
            SpecDecodeMetrics { drafted_steps: steps(1000, seconds, 1000 + accepted), ..engine(1000, k, accepted) };
        let payoff = metrics.payoff();
        let [with, without] = [payoff.tokens_per_second_with_drafts(), payoff.tokens_per_second_without_drafts()];
        let speedup = payoff.speedup().unwrap();
        prop_assert!(close(speedup, with.unwrap() / without.unwrap()));
        prop_assert!(close(speedup, payoff.expected_speedup(k).unwrap().value));
    }

    #[test]
    fn at_the_break_even_acceptance_it_breaks_even(k in 1..9usize, draft in 0.01..0.5f64, verify in 0.8..1.5f64) {
        match modelled(&vec![0.5; k], draft, verify).payoff().break_even_acceptance() {
            Some(0.0) => prop_assert!(draft * k as f64 + verify <= 1.0 + 1e-9),
            Some(acceptance) => {
                let payoff = modelled(&vec![acceptance; k], draft, verify).payoff();
                prop_assert!(close(payoff.speedup().unwrap(), 1.0));
            }
            None => prop_assert!(draft * k as f64 + verify > k as f64 + 1.0 - 1e-9),
        }
    }
}
