//! A model at work: a cache for each sequence, and passes over new tokens of several sequences at once.

use std::num::NonZeroU32;

use anyhow::{Context, Result, ensure};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_batch::LlamaBatch;

use crate::model::{Model, Token, backend};

/// How much a model is made ready for.
#[derive(Debug, Clone, Copy)]
pub struct Capacity {
    pub sequences: usize,
    /// Tokens of one sequence, its prompt included.
    pub context: usize,
    /// Tokens of one pass.
    pub batch: usize,
    /// Of these, tokens computed at once. A pass is bit-equal to passes over single tokens only where this is 1.
    pub micro_batch: usize,
    pub threads: usize,
}

/// New tokens of one sequence.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) sequence: usize,
    pub(crate) tokens: Vec<Token>,
    /// Behind how many of them, from the last, the next token's logits are wanted.
    pub(crate) outputs: usize,
}

#[derive(Debug)]
pub struct Runner<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    batch_len: usize,
    /// Tokens of each sequence that the cache holds.
    cached: Vec<usize>,
}

impl<'m> Runner<'m> {
    /// # Errors
    ///
    /// There is not the memory for it.
    pub fn new(model: &'m Model, capacity: Capacity) -> Result<Self> {
        // llama.cpp shares the context out among the sequences, in units of 256.
        let cells = capacity.context.next_multiple_of(256) * capacity.sequences;
        let threads = i32::try_from(capacity.threads)?;
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(u32::try_from(cells)?))
            .with_n_seq_max(u32::try_from(capacity.sequences)?)
            .with_n_batch(u32::try_from(capacity.batch)?)
            .with_n_ubatch(u32::try_from(capacity.micro_batch)?)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            // A cache as short as the attention's window has dropped what a roll-back would return to.
            .with_swa_full(true);
        let context = model.llama.new_context(backend()?, params);
        Ok(Self {
            context: context.with_context(|| format!("no context of {cells} tokens for {}", model.name))?,
            batch: LlamaBatch::new(capacity.batch, 1),
            batch_len: capacity.batch,
            cached: vec![0; capacity.sequences],
        })
    }

    pub(crate) fn cached(&self, sequence: usize) -> usize {
        self.cached[sequence]
    }

    /// Reads a sequence's first tokens, in as many passes as they take.
    ///
    /// # Errors
    ///
    /// llama.cpp refuses a pass.
    pub fn prefill(&mut self, sequence: usize, tokens: &[Token]) -> Result<()> {
        for tokens in tokens.chunks(self.batch_len) {
            self.pass(&[Input { sequence, tokens: tokens.to_vec(), outputs: 0 }])?;
        }
        Ok(())
    }

    /// One pass. Returns for each input where its logits begin.
    pub(crate) fn pass(&mut self, inputs: &[Input]) -> Result<Vec<usize>> {
        self.batch.clear();
        let (mut rows, mut row) = (Vec::new(), 0);
        for Input { sequence, tokens, outputs } in inputs {
            let silent = tokens.len() - outputs;
            rows.push(row + silent);
            for (offset, &token) in tokens.iter().enumerate() {
                let position = i32::try_from(self.cached[*sequence] + offset)?;
                self.batch.add(token, position, &[i32::try_from(*sequence)?], offset >= silent)?;
            }
            row += tokens.len();
        }
        self.context.decode(&mut self.batch).with_context(|| format!("a pass over {row} tokens"))?;
        for Input { sequence, tokens, .. } in inputs {
            self.cached[*sequence] += tokens.len();
        }
        Ok(rows)
    }

    /// The logits behind each of some tokens that follow what was read so far.
    ///
    /// # Errors
    ///
    /// llama.cpp refuses the pass.
    pub fn logits_behind(&mut self, sequence: usize, tokens: &[Token]) -> Result<Vec<Vec<f32>>> {
        self.pass(&[Input { sequence, tokens: tokens.to_vec(), outputs: tokens.len() }])?;
        Ok((0..tokens.len()).map(|row| self.logits(row).to_vec()).collect())
    }

    /// The logits of a row of the last pass.
    pub(crate) fn logits(&self, row: usize) -> &[f32] {
        // A row is an index into a batch, whose length fits.
        self.context.get_logits_ith(row as i32)
    }

    /// Takes back what the cache holds of a sequence behind its first `len` tokens.
    pub(crate) fn keep(&mut self, sequence: usize, len: usize) -> Result<()> {
        if len < self.cached[sequence] {
            let (number, from) = (u32::try_from(sequence)?, u32::try_from(len)?);
            let removed = self.context.clear_kv_cache_seq(Some(number), Some(from), None)?;
            ensure!(removed, "llama.cpp cannot take tokens back from this model's cache");
            self.cached[sequence] = len;
        }
        Ok(())
    }
}
