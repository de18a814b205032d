//! Greedy verification changes no text: exactly where tokens are computed one by one, and but for near ties, which the
//! logits show, where a pass computes them together.

mod support;

use spec_decode_llama::engine::Drafting;
use spec_decode_llama::engine::Settings;
use spec_decode_llama::lookahead::Lookahead;
use spec_decode_llama::model::Token;
use spec_decode_llama::runner::Runner;
use support::{ENDS_SOON, REPEATS, decoded, emitted, exact, fast, model, parallel, prompts};

#[test]
fn prompt_lookup_changes_nothing() {
    let plain = decoded(&[REPEATS], exact(Drafting::Off, 0));
    for k in [1, 4, 9] {
        let drafted = decoded(&[REPEATS], exact(Drafting::PromptLookup(3), k));
        assert_eq!(emitted(&drafted), emitted(&plain), "k = {k}");
        let counts = drafted.counts();
        assert!(counts.accepted_tokens > 0 && counts.accepted_tokens < counts.draft_tokens, "{counts:?}");
    }
}

#[test]
fn a_dynamic_k_and_neighbours_in_the_batch_change_nothing() {
    let texts = [REPEATS, "one two three one two", ENDS_SOON];
    let plain: Vec<_> = texts.iter().flat_map(|text| emitted(&decoded(&[text], exact(Drafting::Off, 0)))).collect();
    let settings = Settings { lookahead: Lookahead::dynamic(2, 6), ..exact(Drafting::PromptLookup(2), 0) };
    assert_eq!(emitted(&decoded(&texts, parallel(settings, 3))), plain);
}

#[test]
fn what_a_model_drafts_for_itself_is_accepted_whole() {
    let plain = decoded(&[REPEATS], exact(Drafting::Off, 0));
    let drafted = decoded(&[REPEATS], exact(Drafting::Model(model()), 4));
    assert_eq!(emitted(&drafted), emitted(&plain));
    let counts = drafted.counts();
    assert_eq!((counts.steps, counts.accepted_tokens), (10, counts.draft_tokens), "{counts:?}");
}

/// How much of the logits' own spread the shape of a pass may make up, as root mean squares over the vocabulary.
///
/// It is not little with this model: activations are rounded to 8 bits in each layer, and what is on the edge of being
/// rounded up falls this way or that.
const MAX_NOISE: f32 = 0.3;

#[test]
fn passes_of_another_shape_turn_near_ties_only() {
    let k = 4;
    let settings = Settings { max_tokens: 96, ..fast(Drafting::Off, 0) };
    let drafting = Settings { drafting: Drafting::PromptLookup(3), lookahead: Lookahead::fixed(k), ..settings };
    for text in [REPEATS, "The capital of France is"] {
        let plain = emitted(&decoded(&[text], settings)).remove(0);
        let drafted = emitted(&decoded(&[text], drafting)).remove(0);
        let prompt = prompts(&[text]).remove(0);

        let [single, together] = [1, k + 1].map(|len| logits_by_passes_of(len, &prompt, &plain, settings));
        let noise = noise(&single, &together);
        println!("{:?}: the shape of a pass makes up {noise} of the logits' spread", text.lines().next());
        assert!(noise > 0.0, "the shapes make no difference here: compare the texts exactly");
        assert!(noise < MAX_NOISE, "{noise}");
        // The same measure finds a context of which one token is wrong.
        let off_by_one = [&prompt[..1], &prompt[..prompt.len() - 1]].concat();
        assert!(self::noise(&single, &logits_by_passes_of(1, &off_by_one, &plain, settings)) > MAX_NOISE);

        let Some(at) = plain.iter().zip(&drafted).position(|(one, other)| one != other) else {
            println!("the texts are the same");
            assert_eq!(drafted, plain);
            continue;
        };
        let logit = |token: Token| single[at][token.0 as usize];
        let gap = logit(plain[at]) - logit(drafted[at]);
        let (spread, distance) = (spread(&single[at]), distance(&single[at], &together[at]));
        println!(
            "they differ at token {at}: the two are {gap} apart, of a spread of {spread}, {distance} by the shape"
        );
        assert!(gap >= 0.0 && gap < MAX_NOISE * spread, "no near tie");
    }
}

/// The logits that each token of a text was chosen by, where passes over it have `len` tokens.
fn logits_by_passes_of(len: usize, prompt: &[Token], text: &[Token], settings: Settings<'_>) -> Vec<Vec<f32>> {
    let mut runner = Runner::new(model(), settings.capacity).expect("a runner");
    let (last, before) = prompt.split_last().expect("a prompt");
    runner.prefill(0, before).expect("a prefill");
    let read: Vec<Token> = [*last].iter().chain(text).copied().take(text.len()).collect();
    let passes = read.chunks(len).map(|tokens| runner.logits_behind(0, tokens).expect("a pass"));
    passes.flatten().collect()
}

/// The largest share, over the positions of a text, of a difference in what the logits themselves differ by.
fn noise(one: &[Vec<f32>], other: &[Vec<f32>]) -> f32 {
    one.iter().zip(other).map(|(one, other)| distance(one, other) / spread(one)).fold(0.0, f32::max)
}

fn distance(one: &[f32], other: &[f32]) -> f32 {
    root_mean_square(one.iter().zip(other).map(|(one, other)| one - other))
}

fn spread(logits: &[f32]) -> f32 {
    let mean = logits.iter().sum::<f32>() / logits.len() as f32;
    root_mean_square(logits.iter().map(|logit| logit - mean))
}

fn root_mean_square(values: impl ExactSizeIterator<Item = f32>) -> f32 {
    let len = values.len() as f32;
    (values.map(|value| value * value).sum::<f32>() / len).sqrt()
}
