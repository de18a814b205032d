//! The quickstart's speculative sampling emits what its target model alone would, and a wrong rule is caught.

#[path = "../examples/quickstart/language_model.rs"]
mod language_model;
#[path = "../examples/quickstart/rng.rs"]
#[expect(dead_code, reason = "only the example draws where a sequence starts")]
mod rng;
#[path = "../examples/quickstart/speculative.rs"]
mod speculative;
#[path = "../examples/quickstart/vocabulary.rs"]
#[expect(dead_code, reason = "only the example turns tokens into text again")]
mod vocabulary;

use language_model::{Distribution, LanguageModel};
use rng::Rng;
use speculative::{Draft, Verdict, accept, draft, sample, verify};
use vocabulary::{Token, Vocabulary};

/// Few different bytes, so that every string of `LEN` tokens is seen often.
const TEXT: &str = "abacabadabacaba dacabacada badcabacab adacab abcabdab cadabra abracadabra bad cab dab dabacaba ";
const LEN: usize = 3;
const SAMPLES: u64 = 12_000;

type Rule = fn(&Draft, &[Distribution], &mut Rng) -> Verdict;

struct Scene {
    target: LanguageModel,
    draft: LanguageModel,
    context: Vec<Token>,
    vocabulary_len: usize,
}

impl Scene {
    fn new() -> Self {
        let vocabulary = Vocabulary::of(TEXT.as_bytes());
        let text = vocabulary.encode(TEXT.as_bytes());
        Self {
            target: LanguageModel::train(&text, vocabulary.len(), 4),
            draft: LanguageModel::train(&text, vocabulary.len(), 2),
            context: vocabulary.encode(b"aba"),
            vocabulary_len: vocabulary.len(),
        }
    }

    /// What each string of `LEN` tokens is worth to the target model, strings in the order of `index`.
    fn expected(&self) -> Vec<f64> {
        (0..self.vocabulary_len.pow(LEN as u32))
            .map(|mut index| {
                let mut string = [0; LEN];
                for token in string.iter_mut().rev() {
                    *token = (index % self.vocabulary_len) as Token;
                    index /= self.vocabulary_len;
                }
                let mut context = self.context.clone();
                string.iter().fold(1.0, |probability, &token| {
                    let next = self.target.next_token(&context)[usize::from(token)];
                    context.push(token);
                    probability * next
                })
            })
            .collect()
    }

    fn index(&self, string: &[Token]) -> usize {
        string.iter().fold(0, |index, &token| index * self.vocabulary_len + usize::from(token))
    }

    /// How often each string came out of decoding with drafts of `num_spec_tokens`.
    fn observed(&self, num_spec_tokens: usize, rule: Rule) -> Vec<u64> {
        let mut counts = vec![0; self.vocabulary_len.pow(LEN as u32)];
        for number in 0..SAMPLES {
            let mut rng = Rng::new(20_240_229, number);
            let mut tokens = self.context.clone();
            while tokens.len() < self.context.len() + LEN {
                let draft = draft(&self.draft, &tokens, num_spec_tokens, &mut rng);
                let target = verify(&self.target, &tokens, &draft.tokens);
                tokens.extend(rule(&draft, &target, &mut rng).emitted);
            }
            counts[self.index(&tokens[self.context.len()..][..LEN])] += 1;
        }
        counts
    }

    fn fits(&self, observed: &[u64]) -> bool {
        let (statistic, critical) = chi_square(observed, &self.expected());
        statistic < critical
    }
}

/// Pearson's statistic and the value that it exceeds once in a thousand, cells too rare to count pooled in one.
fn chi_square(observed: &[u64], probabilities: &[f64]) -> (f64, f64) {
    let total = observed.iter().sum::<u64>() as f64;
    let (mut statistic, mut cells, mut pooled) = (0.0, 0, (0.0, 0.0));
    for (&count, &probability) in observed.iter().zip(probabilities) {
        let (count, expected) = (count as f64, probability * total);
        if expected < 5.0 {
            pooled = (pooled.0 + count, pooled.1 + expected);
        } else {
            statistic += (count - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if pooled.1 >= 5.0 {
        statistic += (pooled.0 - pooled.1).powi(2) / pooled.1;
        cells += 1;
    }
    // Wilson and Hilferty's cube root of the quantile.
    let freedom = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * freedom);
    (statistic, freedom * (1.0 - spread + 3.0902 * spread.sqrt()).powi(3))
}

#[test]
fn what_is_emitted_follows_the_target_model() {
    let scene = Scene::new();
    for num_spec_tokens in [1, 2, 4] {
        let observed = scene.observed(num_spec_tokens, accept);
        let (statistic, critical) = chi_square(&observed, &scene.expected());
        assert!(statistic < critical, "k = {num_spec_tokens}: chi-square {statistic:.1}, allowed {critical:.1}");
    }
}

#[test]
fn accepting_every_draft_token_is_caught() {
    fn accept_all(draft: &Draft, target: &[Distribution], rng: &mut Rng) -> Verdict {
        let mut emitted = draft.tokens.clone();
        emitted.push(sample(&target[draft.tokens.len()], rng));
        Verdict { emitted, accepted: draft.tokens.len() }
    }
    let scene = Scene::new();
    assert!(!scene.fits(&scene.observed(2, accept_all)));
}

#[test]
fn replacing_a_rejected_token_from_the_target_distribution_is_caught() {
    fn without_residual(draft: &Draft, target: &[Distribution], rng: &mut Rng) -> Verdict {
        let mut verdict = accept(draft, target, rng);
        if verdict.accepted < draft.tokens.len() {
            verdict.emitted[verdict.accepted] = sample(&target[verdict.accepted], rng);
        }
        verdict
    }
    let scene = Scene::new();
    assert!(!scene.fits(&scene.observed(2, without_residual)));
}

#[test]
fn a_draft_token_is_accepted_as_often_as_the_two_models_overlap() {
    let scene = Scene::new();
    let proposed = scene.draft.next_token(&scene.context);
    let wanted = scene.target.next_token(&scene.context);
    let overlap: f64 = proposed.iter().zip(&wanted).map(|(q, p)| q.min(*p)).sum();
    let accepted: usize = (0..SAMPLES)
        .map(|number| {
            let mut rng = Rng::new(7, number);
            let draft = draft(&scene.draft, &scene.context, 1, &mut rng);
            accept(&draft, &verify(&scene.target, &scene.context, &draft.tokens), &mut rng).accepted
        })
        .sum();
    let (mean, deviation) = (overlap * SAMPLES as f64, (overlap * (1.0 - overlap) * SAMPLES as f64).sqrt());
    assert!(
        (accepted as f64 - mean).abs() < 3.5 * deviation,
        "{accepted} accepted, expected {mean:.0} ± {deviation:.0}"
    );
}

#[test]
fn a_draft_of_the_target_model_itself_is_accepted_whole() {
    let scene = Scene::new();
    for number in 0..200 {
        let mut rng = Rng::new(1, number);
        let draft = draft(&scene.target, &scene.context, 5, &mut rng);
        let verdict = accept(&draft, &verify(&scene.target, &scene.context, &draft.tokens), &mut rng);
        assert_eq!(verdict.accepted, 5);
        assert_eq!(verdict.emitted.len(), 6);
        assert_eq!(verdict.emitted[..5], draft.tokens);
    }
}

#[test]
fn without_draft_tokens_it_is_plain_decoding() {
    let scene = Scene::new();
    let (mut speculative, mut plain) = (Rng::new(3, 0), Rng::new(3, 0));
    let (mut tokens, mut expected) = (scene.context.clone(), scene.context.clone());
    for _ in 0..500 {
        let draft = draft(&scene.draft, &tokens, 0, &mut speculative);
        let verdict = accept(&draft, &verify(&scene.target, &tokens, &draft.tokens), &mut speculative);
        assert_eq!((verdict.accepted, verdict.emitted.len()), (0, 1));
        tokens.extend(verdict.emitted);
        expected.push(sample(&scene.target.next_token(&expected), &mut plain));
    }
    assert_eq!(tokens, expected);
    assert!(scene.fits(&scene.observed(0, accept)));
}

#[test]
fn every_distribution_adds_up_to_one_and_leaves_no_token_out() {
    let scene = Scene::new();
    let text = Vocabulary::of(TEXT.as_bytes()).encode(TEXT.as_bytes());
    for context in text.windows(6).chain([&[] as &[Token], &[0], &[0, 0, 0, 0, 0]]) {
        for model in [&scene.draft, &scene.target] {
            let distribution = model.next_token(context);
            assert!((distribution.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!(distribution.iter().all(|&probability| probability > 0.0));
        }
    }
}
