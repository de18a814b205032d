//! Speculative decoding whose counting runs on the GPU: `cargo run --release --features cuda --example cuda`.
//!
//! The models are the quickstart's and run on the host; what the sampler decides is uploaded, and one kernel launch per
//! step counts it there. The layer reads the counters as it would an engine's own. On a machine without a driver
//! `--simulate` runs the same on the simulated one, which shows the calls and the numbers, and nothing about speed.
#![allow(unsafe_code)]

#[allow(dead_code)]
#[path = "quickstart/language_model.rs"]
mod language_model;
#[allow(dead_code)]
#[path = "quickstart/rng.rs"]
mod rng;
#[path = "simulator/mod.rs"]
mod simulator;
#[path = "quickstart/speculative.rs"]
mod speculative;
#[path = "quickstart/text.rs"]
mod text;
#[allow(dead_code)]
#[path = "quickstart/vocabulary.rs"]
mod vocabulary;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};
use language_model::LanguageModel;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use rng::Rng;
use tracing_spec_decode::cuda::{DeviceCounters, Mask, Tokens, driver_version};
use tracing_spec_decode::{builder, step_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use vocabulary::{Token, Vocabulary};

const K: usize = 5;
const BATCH: usize = 8;
const STEPS: usize = 400;
const CONTEXT: usize = 16;

fn main() -> ExitCode {
    let outcome = simulator::open_if_asked().and_then(|()| {
        driver_version().map_err(|error| format!("{error} (`-- --simulate` shows it on a simulated driver)"))?;
        decode().map_err(|error| error.to_string())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn decode() -> Result<(), Box<dyn Error>> {
    let provider = SdkMeterProvider::builder().build();
    let (layer, handle) = builder().with_interval(Duration::from_millis(50)).with_meter_provider(&provider).build()?;
    tracing_subscriber::registry().with(layer).init();

    // The engine's own CUDA state, made by cudarc.
    let stream = CudaContext::new(0)?.new_stream()?;
    let mut sampler = Sampler::new(&stream)?;

    // Counters on the device and their source: all that the layer needs.
    let counters = DeviceCounters::from_cudarc(&stream, K)?;
    let attached = handle.attach("0", counters.source()?)?;

    let text = text::read(None)?;
    let vocabulary = Vocabulary::of(&text);
    let tokens = vocabulary.encode(&text);
    let target = LanguageModel::train(&tokens, vocabulary.len(), 6);
    let draft = LanguageModel::train(&tokens, vocabulary.len(), 4);
    let mut batch: Vec<(Vec<Token>, Rng)> = (0..BATCH as u64)
        .map(|number| {
            let mut rng = Rng::new(7, number);
            let start = rng.below(tokens.len() - CONTEXT);
            (tokens[start..start + CONTEXT].to_vec(), rng)
        })
        .collect();

    let (mut accepted, mut emitted) = (0, 0);
    for _ in 0..STEPS {
        // k and the number of sequences are known on the host; what was accepted is known on the device only.
        let span = step_span!(num_spec_tokens = K as u64);
        let _inside = span.enter();
        sampler.clear();
        for (row, (context, rng)) in batch.iter_mut().enumerate() {
            let proposal = speculative::draft(&draft, context, K, rng);
            let distributions = speculative::verify(&target, context, &proposal.tokens);
            let verdict = speculative::accept(&proposal, &distributions, rng);
            sampler.put(row, verdict.accepted, &verdict.emitted);
            accepted += verdict.accepted;
            emitted += verdict.emitted.len();
            context.extend(&verdict.emitted);
            context.drain(..context.len() - CONTEXT);
        }
        let verdicts = sampler.upload(&stream)?;
        // SAFETY: the arrays are as large as the batch says and live as long as the sampler.
        unsafe { counters.count_mask(verdicts) }?;
    }

    handle.flush(Duration::from_secs(5))?;
    let metrics = handle.metrics("0").unwrap_or_default();
    println!("{metrics}");
    println!("counted on the host beside it: {accepted} accepted, {emitted} emitted");
    drop(attached);
    provider.shutdown()?;
    if (metrics.accepted_tokens, metrics.emitted_tokens) != (Some(accepted as u64), Some(emitted as u64)) {
        return Err("the device counted something else".into());
    }
    Ok(())
}

/// What a rejection sampler leaves in device memory.
struct Sampler {
    mask: Vec<u8>,
    output: Vec<i64>,
    mask_on_device: CudaSlice<u8>,
    output_on_device: CudaSlice<i64>,
}

impl Sampler {
    fn new(stream: &Arc<CudaStream>) -> Result<Self, Box<dyn Error>> {
        Ok(Self {
            mask: vec![0; BATCH * K],
            output: vec![-1; BATCH * (K + 1)],
            mask_on_device: stream.alloc_zeros(BATCH * K)?,
            output_on_device: stream.alloc_zeros(BATCH * (K + 1))?,
        })
    }

    fn clear(&mut self) {
        self.mask.fill(0);
        self.output.fill(-1);
    }

    fn put(&mut self, row: usize, accepted: usize, emitted: &[Token]) {
        self.mask[row * K..][..accepted].fill(1);
        for (slot, token) in self.output[row * (K + 1)..].iter_mut().zip(emitted) {
            *slot = i64::from(*token);
        }
    }

    fn upload(&mut self, stream: &Arc<CudaStream>) -> Result<Mask, Box<dyn Error>> {
        stream.memcpy_htod(&self.mask, &mut self.mask_on_device)?;
        stream.memcpy_htod(&self.output, &mut self.output_on_device)?;
        Ok(Mask {
            accepted: self.mask_on_device.device_ptr(stream).0,
            output: Tokens::I64(self.output_on_device.device_ptr(stream).0),
            drafted: 0,
            batch: BATCH as u32,
            k: K as u32,
        })
    }
}
