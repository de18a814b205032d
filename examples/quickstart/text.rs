//! The text that both models are made from.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// This example itself: always there, and the same on every machine.
const OWN_SOURCE: &str = concat!(
    include_str!("main.rs"),
    include_str!("options.rs"),
    include_str!("text.rs"),
    include_str!("vocabulary.rs"),
    include_str!("rng.rs"),
    include_str!("language_model.rs"),
    include_str!("speculative.rs"),
    include_str!("engine.rs"),
    include_str!("telemetry.rs"),
    include_str!("otlp.rs"),
    include_str!("scrape.rs"),
    include_str!("exported.rs"),
    include_str!("progress.rs"),
    include_str!("report.rs"),
);

const MIN_LEN: usize = 1_000;
const MAX_LEN: usize = 8 << 20;

/// The file's text, or this example's own source.
pub(crate) fn read(path: Option<&Path>) -> Result<Vec<u8>, String> {
    let Some(path) = path else { return Ok(OWN_SOURCE.as_bytes().to_vec()) };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_LEN as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot read {path:?}: {error}"))?;
    check(&bytes).map_err(|why| format!("cannot learn from {path:?}: {why}"))?;
    Ok(bytes)
}

fn check(bytes: &[u8]) -> Result<(), String> {
    if bytes.len() > MAX_LEN {
        return Err(format!("it is larger than {} MiB", MAX_LEN >> 20));
    }
    if bytes.contains(&0) || std::str::from_utf8(bytes).is_err() {
        return Err("it is binary, not UTF-8 text".to_owned());
    }
    if bytes.len() < MIN_LEN {
        return Err(format!("{} bytes are too few, it takes {MIN_LEN}", bytes.len()));
    }
    Ok(())
}
