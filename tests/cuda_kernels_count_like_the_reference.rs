//! The three kernels count what a plain loop counts, on random batches, launched one by one and from a graph.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(missing_docs, unsafe_code)]

mod sim;

use cudarc::driver::sys;
use proptest::prelude::*;
use sim::{Engine, sample, sim, upload};
use tracing_spec_decode::cuda::{DeviceCounters, Lengths, Mask, Tokens};
use tracing_spec_decode::source::{CounterSource, Counters};

const POSITIONS: usize = 4;

/// One batch: drafted lengths (also out of range), ids drafted and chosen, the mask, the tokens put out.
#[derive(Clone, Debug)]
struct Batch {
    k: usize,
    is_ragged: bool,
    drafted: Vec<i32>,
    draft: Vec<i64>,
    target: Vec<i64>,
    mask: Vec<u8>,
    output: Vec<i64>,
    accepted: Vec<i32>,
    emitted: Vec<i32>,
}

fn batch() -> impl Strategy<Value = Batch> {
    (1usize..300, 0usize..7, any::<bool>()).prop_flat_map(|(rows, k, is_ragged)| {
        // Few different ids, so that prefixes of every length come up.
        let ids = |count: usize| proptest::collection::vec(0i64..3, count);
        (
            proptest::collection::vec(-1i32..8, rows),
            ids(rows * k),
            ids(rows * (k + 1)),
            proptest::collection::vec(0u8..3, rows * k),
            proptest::collection::vec(-1i64..2, rows * (k + 1)),
            proptest::collection::vec(-2i32..8, rows),
            proptest::collection::vec(-2i32..9, rows),
        )
            .prop_map(move |(drafted, draft, target, mask, output, accepted, emitted)| Batch {
                k,
                is_ragged,
                drafted,
                draft,
                target,
                mask,
                output,
                accepted,
                emitted,
            })
    })
}

impl Batch {
    fn rows(&self) -> usize {
        self.drafted.len()
    }

    fn drafted(&self, row: usize) -> usize {
        let k = self.k as i32;
        if self.is_ragged { self.drafted[row].clamp(0, k) as usize } else { self.k }
    }
}

fn blank() -> (Counters, i64) {
    let positions = || vec![0; POSITIONS].into_boxed_slice();
    (Counters { accepted_per_position: positions(), draft_per_position: positions(), ..Counters::default() }, 0)
}

fn add(total: &mut Counters, drafted: usize, accepted: usize, emitted: usize) {
    if drafted == 0 {
        return;
    }
    total.drafts += 1;
    total.draft_tokens += drafted as u64;
    total.accepted += accepted as u64;
    total.emitted += emitted as u64;
    total.draft_per_position.iter_mut().take(drafted).for_each(|tokens| *tokens += 1);
    total.accepted_per_position.iter_mut().take(accepted).for_each(|tokens| *tokens += 1);
}

fn reference(batch: &Batch, form: usize) -> (Counters, i64) {
    let (mut total, mut raw) = blank();
    for row in 0..batch.rows() {
        let drafted = batch.drafted(row);
        let k = batch.k;
        let hits: Vec<bool> = match form {
            0 => batch.mask[row * k..][..drafted].iter().map(|hit| *hit != 0).collect(),
            _ => (0..drafted).map(|at| batch.draft[row * k + at] == batch.target[row * (k + 1) + at]).collect(),
        };
        let prefix = hits.iter().take_while(|hit| **hit).count();
        match form {
            0 => {
                let output = &batch.output[row * (k + 1)..][..k + 1];
                add(&mut total, drafted, prefix, output.iter().filter(|id| **id != -1).count());
            }
            1 => add(&mut total, drafted, prefix, prefix + 1),
            _ => {
                let length = |lengths: &[i32]| lengths[row].max(0) as usize;
                add(&mut total, length(&batch.drafted), length(&batch.accepted), length(&batch.emitted));
            }
        }
        if form < 2 && drafted > 0 {
            raw += hits.iter().filter(|hit| **hit).count() as i64;
        }
    }
    (total, raw)
}

/// The batch on the device, its ids of either width.
struct Uploaded {
    mask: Mask,
    draft: Tokens,
    target: Tokens,
    lengths: Lengths,
}

fn ids(engine: &Engine, ids: &[i64], is_wide: bool) -> Tokens {
    if is_wide {
        return Tokens::I64(upload(&engine.stream, ids));
    }
    Tokens::I32(upload(&engine.stream, &ids.iter().map(|id| *id as i32).collect::<Vec<_>>()))
}

fn uploaded(engine: &Engine, batch: &Batch, is_wide: bool) -> Uploaded {
    let drafted = upload(&engine.stream, &batch.drafted);
    let rows = batch.rows() as u32;
    Uploaded {
        mask: Mask {
            accepted: upload(&engine.stream, &batch.mask),
            output: ids(engine, &batch.output, is_wide),
            drafted: if batch.is_ragged { drafted } else { 0 },
            batch: rows,
            k: batch.k as u32,
        },
        draft: ids(engine, &batch.draft, is_wide),
        target: ids(engine, &batch.target, is_wide),
        lengths: Lengths {
            drafted,
            accepted: upload(&engine.stream, &batch.accepted),
            emitted: upload(&engine.stream, &batch.emitted),
            batch: rows,
        },
    }
}

fn count(counters: &DeviceCounters, on_device: &Uploaded, form: usize) {
    let Uploaded { mask, draft, target, lengths } = on_device;
    let counted = unsafe {
        match form {
            0 => counters.count_mask(*mask),
            1 => counters.count_tokens(*draft, *target, mask.drafted, mask.batch, mask.k),
            _ => counters.count_lengths(*lengths),
        }
    };
    counted.unwrap();
}

/// The word that is not exported.
fn raw_mask(engine: &Engine, counters: &DeviceCounters) -> i64 {
    engine.context.bind_to_thread().unwrap();
    let mut word = [0i64];
    let address = counters.device_ptr() + 8 * DeviceCounters::RAW_MASK_WORD as u64;
    unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut word, address) }.unwrap();
    word[0]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_by_one_and_by_replay(batch in batch(), is_wide in any::<bool>(), form in 0usize..3, replays in 1u64..4) {
        let sim = sim();
        let engine = Engine::new(0);
        let counters = DeviceCounters::from_cudarc(&engine.stream, POSITIONS).unwrap();
        let mut source = counters.source().unwrap();
        let on_device = uploaded(&engine, &batch, is_wide);
        let (expected, raw) = reference(&batch, form);

        count(&counters, &on_device, form);
        prop_assert_eq!(&sample(&sim, &mut source), &expected);
        prop_assert_eq!(raw_mask(&engine, &counters), raw);

        engine.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        count(&counters, &on_device, form);
        let graph = engine.stream.end_capture(sys::CUgraphInstantiate_flags(0)).unwrap().unwrap();
        prop_assert_eq!(&sample(&sim, &mut source), &expected, "captured, not run");
        for _ in 0..replays {
            graph.launch().unwrap();
        }
        let times = replays + 1;
        let scaled = |words: &[u64]| words.iter().map(|word| word * times).collect::<Box<[u64]>>();
        let expected = Counters {
            accepted: expected.accepted * times,
            emitted: expected.emitted * times,
            drafts: expected.drafts * times,
            draft_tokens: expected.draft_tokens * times,
            accepted_per_position: scaled(&expected.accepted_per_position),
            draft_per_position: scaled(&expected.draft_per_position),
            ..Counters::default()
        };
        prop_assert_eq!(&sample(&sim, &mut source), &expected);
        prop_assert_eq!(sim.misuse(), "");
    }
}

/// The masks of the definitions: k = 4, `1,0,1,0` and `0,1,1,1`.
#[test]
fn the_prefix_is_counted_and_not_the_mask() {
    let sim = sim();
    let engine = Engine::new(0);
    let counters = DeviceCounters::from_cudarc(&engine.stream, POSITIONS).unwrap();
    let mut source = counters.source().unwrap();
    let mask = Mask {
        accepted: upload(&engine.stream, &[1u8, 0, 1, 0, 0, 1, 1, 1]),
        output: Tokens::I64(upload(&engine.stream, &[5i64, 6, -1, -1, -1, 7, -1, -1, -1, -1])),
        drafted: 0,
        batch: 2,
        k: 4,
    };
    unsafe { counters.count_mask(mask) }.unwrap();
    let read = sample(&sim, &mut source);
    assert_eq!((read.drafts, read.draft_tokens, read.accepted, read.emitted), (2, 8, 1, 3));
    assert_eq!((&read.accepted_per_position[..], &read.draft_per_position[..]), (&[1, 0, 0, 0][..], &[2, 2, 2, 2][..]));
    assert_eq!(raw_mask(&engine, &counters), 5);
    assert_eq!(Counters::for_layout(source.layout()).draft_per_position.len(), POSITIONS);
}
