//! The bytes choose the operations of `tests/any_interleaving_agrees_with_a_simple_model.rs`: what holds there for random
//! choices holds for those that reach new code.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/any_interleaving_agrees_with_a_simple_model.rs"]
mod model;

use libfuzzer_sys::{Corpus, fuzz_target};
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fuzz_target!(|data: &[u8]| -> Corpus {
    let random = TestRng::from_seed(RngAlgorithm::PassThrough, data);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let choices = (proptest::bool::ANY, proptest::bool::ANY, vec(model::op(), 1..120));
    let Ok(chosen) = choices.new_tree(&mut runner) else { return Corpus::Reject };
    let (first, second, ops) = chosen.current();
    model::run([first, second], &ops);
    Corpus::Keep
});
