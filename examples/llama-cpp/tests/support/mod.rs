//! The model of the tests, and engines that use it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::PathBuf;
use std::sync::OnceLock;

use spec_decode_llama::engine::{Drafting, Engine, Settings};
use spec_decode_llama::lookahead::Lookahead;
use spec_decode_llama::model::{Model, Token};
use spec_decode_llama::runner::Capacity;
use spec_decode_llama::sampling::Method;
use spec_decode_llama::sequence::Sequence;

/// Drafts of prompt lookup fit it well.
pub(crate) const REPEATS: &str = include_str!("../../prompt-that-repeats.txt");

/// The model ends this text after few tokens.
pub(crate) const ENDS_SOON: &str = r#"{"name": "Bob", "age": 3}"#;

pub(crate) fn model_file() -> PathBuf {
    let file = std::env::var_os("LLAMA_MODEL");
    file.expect("set LLAMA_MODEL to what fetch-model.sh prints, or run check.sh").into()
}

pub(crate) fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::load(&model_file()).expect("a model"))
}

pub(crate) fn prompts(texts: &[&str]) -> Vec<Vec<Token>> {
    texts.iter().map(|text| model().tokenize(text)).collect()
}

/// Greedy, with tokens computed one by one: what a token comes out as does not depend on the others of its pass.
pub(crate) fn exact(drafting: Drafting<'static>, k: usize) -> Settings<'static> {
    Settings {
        name: "0",
        drafting,
        lookahead: Lookahead::fixed(k),
        method: Method::Greedy,
        max_tokens: 48,
        seed: 0,
        // One thread: several wait for each other by spinning, which takes forever on a busy machine.
        capacity: Capacity { sequences: 1, context: 512, batch: 128, micro_batch: 1, threads: 1 },
    }
}

/// With the tokens of a pass computed at once.
pub(crate) fn fast(drafting: Drafting<'static>, k: usize) -> Settings<'static> {
    let exact = exact(drafting, k);
    Settings { capacity: Capacity { micro_batch: exact.capacity.batch, ..exact.capacity }, ..exact }
}

pub(crate) fn parallel(settings: Settings<'static>, sequences: usize) -> Settings<'static> {
    Settings { capacity: Capacity { sequences, ..settings.capacity }, ..settings }
}

pub(crate) fn run(engine: &mut Engine<'_>) {
    engine.prefill().expect("a prefill");
    while !engine.is_done() {
        engine.step().expect("a step");
    }
}

/// Decodes to the end.
pub(crate) fn decoded(texts: &[&str], settings: Settings<'static>) -> Engine<'static> {
    let mut engine = Engine::new(model(), &prompts(texts), settings).expect("an engine");
    run(&mut engine);
    engine
}

pub(crate) fn emitted(engine: &Engine<'_>) -> Vec<Vec<Token>> {
    engine.sequences().iter().map(|sequence| sequence.emitted().to_vec()).collect()
}

pub(crate) fn number_of_tokens(engine: &Engine<'_>) -> u64 {
    engine.sequences().iter().map(Sequence::emitted).map(|tokens| tokens.len() as u64).sum()
}
