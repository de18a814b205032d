//! At a temperature, what is emitted is distributed as the target model alone has it, whatever drafts, and a wrong rule
//! is caught.

use spec_decode_llama::model::Token;
use spec_decode_llama::sampling::{Distribution, Draft, Method, Verdict};

const TEMPERATURE: f32 = 0.8;
const SAMPLES: u64 = 40_000;

/// The target's logits at the first position, and at the second behind each first token.
const TARGET: [[f32; 4]; 5] =
    [[1.0, 0.2, -0.5, 0.0], [0.0, 1.5, 0.3, -1.0], [2.0, -1.0, 0.0, 0.4], [-0.3, 0.1, 0.9, 0.0], [0.5, 0.5, 0.5, -2.0]];
const DRAFTS: [f32; 4] = [-0.5, 0.9, 0.3, 0.6];

type Rule = fn(&Draft, [&[f32]; 2], &mut fastrand::Rng) -> Verdict;

fn verify(draft: &Draft, logits: [&[f32]; 2], rng: &mut fastrand::Rng) -> Verdict {
    Method::Sampling(TEMPERATURE).verify(draft, |position| logits[position], |_| false, rng)
}

/// The probability of each pair of tokens.
fn expected() -> Vec<f64> {
    let probabilities = |logits: &[f32]| {
        let distribution = Distribution::new(logits, TEMPERATURE);
        (0..4).map(|token| distribution.probability(Token(token))).collect::<Vec<f64>>()
    };
    let first = probabilities(&TARGET[0]);
    first.iter().zip(&TARGET[1..]).flat_map(|(p, then)| probabilities(then).into_iter().map(move |q| p * q)).collect()
}

/// Pearson's statistic of pairs decoded from drafts of one token: 15 degrees of freedom.
fn chi_square(propose: impl Fn(&mut fastrand::Rng) -> Draft, rule: Rule) -> f64 {
    let mut counts = [0u64; 16];
    for seed in 0..SAMPLES {
        let mut rng = fastrand::Rng::with_seed(seed);
        let draft = propose(&mut rng);
        let after = TARGET[1 + draft.tokens[0].0 as usize];
        let mut pair = rule(&draft, [&TARGET[0], &after], &mut rng).emitted;
        if pair.len() == 1 {
            let then = TARGET[1 + pair[0].0 as usize];
            pair.extend(rule(&Draft::default(), [&then, &then], &mut rng).emitted);
        }
        counts[pair[0].0 as usize * 4 + pair[1].0 as usize] += 1;
    }
    let cells = counts.iter().zip(expected()).map(|(&count, probability)| (count as f64, probability * SAMPLES as f64));
    cells.map(|(count, expected)| (count - expected).powi(2) / expected).sum()
}

/// Exceeded once in a thousand.
const CRITICAL: f64 = 37.7;

/// Drawn as a draft model draws.
fn drawn(rng: &mut fastrand::Rng) -> Draft {
    let token = Method::Sampling(TEMPERATURE).verify(&Draft::default(), |_| &DRAFTS, |_| false, rng).emitted[0];
    Draft { tokens: vec![token], distributions: vec![Distribution::new(&DRAFTS, TEMPERATURE)] }
}

/// Certain, as prompt lookup is.
fn certain(_: &mut fastrand::Rng) -> Draft {
    Draft { tokens: vec![Token(1)], distributions: Vec::new() }
}

#[test]
fn what_a_draft_model_draws_changes_no_distribution() {
    let statistic = chi_square(drawn, verify);
    assert!(statistic < CRITICAL, "{statistic}");
}

#[test]
fn what_prompt_lookup_finds_changes_no_distribution() {
    let statistic = chi_square(certain, verify);
    assert!(statistic < CRITICAL, "{statistic}");
}

#[test]
fn accepting_all_is_caught() {
    let accept_all: Rule = |draft, logits, rng| {
        let mut emitted = draft.tokens.clone();
        let own = if draft.tokens.is_empty() { logits[0] } else { logits[1] };
        emitted.extend(verify(&Draft::default(), [own, own], rng).emitted);
        Verdict { accepted: draft.tokens.len(), emitted }
    };
    assert!(chi_square(drawn, accept_all) > CRITICAL);
    assert!(chi_square(certain, accept_all) > CRITICAL);
}

#[test]
fn taking_what_was_certain_for_drawn_is_caught() {
    let as_if_drawn: Rule = |draft, logits, rng| {
        let distributions = draft.tokens.iter().map(|_| Distribution::new(&DRAFTS, TEMPERATURE)).collect();
        verify(&Draft { tokens: draft.tokens.clone(), distributions }, logits, rng)
    };
    assert!(chi_square(certain, as_if_drawn) > CRITICAL);
}

#[test]
fn greedily_the_likeliest_are_kept_and_a_drafted_end_is_the_last() {
    let rng = &mut fastrand::Rng::with_seed(0);
    let logits = |position: usize| &TARGET[position][..];
    let draft =
        |tokens: &[i32]| Draft { tokens: tokens.iter().copied().map(Token).collect(), distributions: Vec::new() };
    let mut verdict = |tokens: &[i32], end: i32| {
        let verdict = Method::Greedy.verify(&draft(tokens), logits, |token| token.0 == end, rng);
        (verdict.accepted, verdict.emitted.iter().map(|token| token.0).collect::<Vec<_>>())
    };
    assert_eq!(verdict(&[0, 1, 0, 2], 9), (4, vec![0, 1, 0, 2, 0]));
    assert_eq!(verdict(&[0, 1, 3, 2], 9), (2, vec![0, 1, 0]));
    assert_eq!(verdict(&[0, 1, 0, 2], 1), (2, vec![0, 1]));
    assert_eq!(verdict(&[], 0), (0, vec![0]));
}
