#!/usr/bin/env bash
# Builds the crate with its feature `cuda` beside other users of cudarc: an older cudarc whose version is fixed, and
# candle's way of linking the driver. Only checks are made: no toolkit and no driver is needed, and nothing is linked.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

check() {
    name=$1 dependency=$2
    mkdir -p "$folder/$name/src"
    cat >"$folder/$name/Cargo.toml" <<TOML
[package]
name = "$name"
version = "0.0.0"
edition = "2024"

[dependencies]
neighbour = { package = "cudarc", $dependency }
tracing-spec-decode = { path = "$here", features = ["cuda"] }

[workspace]
TOML
    cat >"$folder/$name/src/lib.rs" <<'RUST'
//! An engine on a cudarc of its own, whose handles go into the raw constructor.
use tracing_spec_decode::cuda::{CudaError, CudaSource, RawParts, Words};

/// # Safety
///
/// As the constructor's.
pub unsafe fn source(stream: &neighbour::driver::CudaStream, block: u64) -> Result<CudaSource, CudaError> {
    let raw = RawParts {
        device_ptr: block,
        words: 1,
        stream: stream.cu_stream().cast(),
        context: stream.context().cu_ctx().cast(),
        ordinal: 0,
    };
    unsafe { CudaSource::from_raw_parts(raw, Words::accepted_at(0), None) }
}
RUST
    CARGO_TARGET_DIR="$folder/target" cargo check --quiet --manifest-path "$folder/$name/Cargo.toml"
    echo "$name: builds"
}

check older-cudarc 'version = "0.17.8", default-features = false, features = ["std", "driver", "cuda-12080", "dynamic-loading"]'
# As candle-core asks for it: linked, with the version taken from the build system.
check candles-features 'version = "0.19.10", default-features = false, features = ["std", "driver", "cuda-version-from-build-system", "dynamic-linking"]'
