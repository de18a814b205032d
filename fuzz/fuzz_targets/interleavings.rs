//! The bytes choose the operations of `tests/any_interleaving_agrees_with_a_simple_model.rs`: what holds there for random
//! choices holds for those that reach new code.
#![no_main]

#[allow(dead_code)]
#[path = "../../tests/any_interleaving_agrees_with_a_simple_model.rs"]
mod model;

use arbitrary::{Result, Unstructured};
use libfuzzer_sys::{Corpus, fuzz_target};
use model::{ENGINES, FIELDS, Op, SLOTS};

fn op(bytes: &mut Unstructured<'_>) -> Result<Op> {
    let slot = bytes.choose_index(SLOTS)?;
    let engine = bytes.choose_index(ENGINES.len())?;
    Ok(match bytes.int_in_range(0..=16)? {
        0 | 1 => Op::Open {
            slot,
            engine,
            k: bytes.int_in_range(0..=4)?,
            drafts: bytes.int_in_range(0..=3)?,
            ragged: bytes.int_in_range(0..=7)?,
        },
        2 => Op::Enter { slot },
        3 => Op::Exit { slot },
        4 => Op::Work { slot, accepted: bytes.arbitrary()? },
        5 => Op::Record { slot, field: bytes.choose_index(FIELDS.len())?, value: bytes.int_in_range(-2..=19)? },
        6 => Op::Close { slot },
        7 | 8 => Op::Step {
            slot,
            engine,
            k: bytes.int_in_range(0..=4)?,
            drafts: bytes.int_in_range(0..=3)?,
            ragged: bytes.int_in_range(0..=7)?,
            accepted: bytes.arbitrary()?,
            polls: bytes.int_in_range(1..=3)?,
        },
        9 => Op::Advance { millis: bytes.int_in_range(0..=6_499)? },
        10 => Op::Poll { engine },
        11 => Op::Attach { engine, on_host: bytes.arbitrary()? },
        12 => Op::Detach { engine },
        13 => Op::Source { engine, mood: bytes.int_in_range(0..=5)? },
        14 => Op::Restart { engine },
        15 => Op::Rebase { engine },
        _ if bytes.arbitrary()? => Op::Read,
        _ => Op::Flush,
    })
}

fuzz_target!(|data: &[u8]| -> Corpus {
    let mut bytes = Unstructured::new(data);
    let Ok(attached) = bytes.arbitrary() else { return Corpus::Reject };
    let mut ops = Vec::new();
    while !bytes.is_empty()
        && ops.len() < 200
        && let Ok(op) = op(&mut bytes)
    {
        ops.push(op);
    }
    model::run(attached, &ops);
    Corpus::Keep
});
