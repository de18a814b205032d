//! An engine on the device: its stream, random batches that lie there, and what a CPU counts of each.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use tracing_spec_decode::cuda::{DeviceCounters, Lengths, Mask, Tokens};

pub(crate) const K: usize = 5;
pub(crate) const ROWS: usize = 64;

/// A generator that gives the same batches everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // An odd step and two multiplications mix well enough for test data.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed ^ (mixed >> 32)) % bound
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub(crate) drafts: u64,
    pub(crate) draft_tokens: u64,
    pub(crate) accepted: u64,
    pub(crate) emitted: u64,
}

impl Counted {
    pub(crate) fn add(&mut self, other: Self) {
        self.drafts += other.drafts;
        self.draft_tokens += other.draft_tokens;
        self.accepted += other.accepted;
        self.emitted += other.emitted;
    }
}

pub(crate) fn device_name() -> Result<String, Box<dyn Error>> {
    Ok(CudaContext::new(0)?.name()?)
}

pub(crate) fn stream() -> Result<Arc<CudaStream>, Box<dyn Error>> {
    Ok(CudaContext::new(0)?.new_stream()?)
}

/// One batch in device memory, in each of the three forms.
pub(crate) struct Batch {
    mask: CudaSlice<u8>,
    output: CudaSlice<i64>,
    draft: CudaSlice<i32>,
    target: CudaSlice<i32>,
    drafted: CudaSlice<i32>,
    accepted: CudaSlice<i32>,
    emitted: CudaSlice<i32>,
    by_mask: Counted,
    by_tokens: Counted,
    by_lengths: Counted,
}

impl Batch {
    pub(crate) fn random(stream: &Arc<CudaStream>, random: &mut Random) -> Result<Self, Box<dyn Error>> {
        let mut ints = |count: usize, bound: u64, less: i32| -> Vec<i32> {
            (0..count).map(|_| random.below(bound) as i32 - less).collect()
        };
        let drafted = ints(ROWS, K as u64 + 1, 0);
        let (draft, target) = (ints(ROWS * K, 2, 0), ints(ROWS * (K + 1), 2, 0));
        let mask: Vec<u8> = ints(ROWS * K, 3, 0).into_iter().map(|value| value.min(1) as u8).collect();
        let output: Vec<i64> = ints(ROWS * (K + 1), 3, 1).into_iter().map(i64::from).collect();
        let (accepted, emitted) = (ints(ROWS, K as u64 + 1, 0), ints(ROWS, K as u64 + 2, 0));
        let (mut by_mask, mut by_tokens, mut by_lengths) = Default::default();
        for row in 0..ROWS {
            let tokens = drafted[row] as usize;
            if tokens == 0 {
                continue;
            }
            let count = |accepted: usize, emitted: usize| Counted {
                drafts: 1,
                draft_tokens: tokens as u64,
                accepted: accepted as u64,
                emitted: emitted as u64,
            };
            let prefix = mask[row * K..][..tokens].iter().take_while(|hit| **hit != 0).count();
            let put_out = output[row * (K + 1)..][..K + 1].iter().filter(|id| **id != -1).count();
            Counted::add(&mut by_mask, count(prefix, put_out));
            let agreed = draft[row * K..][..tokens].iter().zip(&target[row * (K + 1)..]);
            let prefix = agreed.take_while(|(draft, target)| draft == target).count();
            Counted::add(&mut by_tokens, count(prefix, prefix + 1));
            Counted::add(&mut by_lengths, count(accepted[row] as usize, emitted[row] as usize));
        }
        Ok(Self {
            mask: stream.clone_htod(&mask)?,
            output: stream.clone_htod(&output)?,
            draft: stream.clone_htod(&draft)?,
            target: stream.clone_htod(&target)?,
            drafted: stream.clone_htod(&drafted)?,
            accepted: stream.clone_htod(&accepted)?,
            emitted: stream.clone_htod(&emitted)?,
            by_mask,
            by_tokens,
            by_lengths,
        })
    }

    /// Counts it on the device by one of the forms, and says what that comes to.
    pub(crate) fn count(&self, counters: &DeviceCounters, form: u64) -> Result<Counted, Box<dyn Error>> {
        let stream = self.mask.stream();
        let drafted = self.drafted.device_ptr(stream).0;
        let (rows, k) = (ROWS as u32, K as u32);
        // SAFETY: the arrays are as large as each form says, and live until the stream has been waited for.
        unsafe {
            match form {
                0 => counters.count_mask(Mask {
                    accepted: self.mask.device_ptr(stream).0,
                    output: Tokens::I64(self.output.device_ptr(stream).0),
                    drafted,
                    batch: rows,
                    k,
                })?,
                1 => counters.count_tokens(
                    Tokens::I32(self.draft.device_ptr(stream).0),
                    Tokens::I32(self.target.device_ptr(stream).0),
                    drafted,
                    rows,
                    k,
                )?,
                _ => counters.count_lengths(Lengths {
                    drafted,
                    accepted: self.accepted.device_ptr(stream).0,
                    emitted: self.emitted.device_ptr(stream).0,
                    batch: rows,
                })?,
            }
        }
        Ok(self.counted(form))
    }

    pub(crate) fn counted(&self, form: u64) -> Counted {
        match form {
            0 => self.by_mask,
            1 => self.by_tokens,
            _ => self.by_lengths,
        }
    }
}

/// Fails with what was expected and what was found.
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Box<dyn Error>> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}").into()) }
}
