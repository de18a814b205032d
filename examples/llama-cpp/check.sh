#!/usr/bin/env bash
# The engine against the real model: exact counts, equal texts, spans, bad input, and the README's difference.
# The build and the model are kept outside of the clone: the first run takes minutes, the next ones one or two.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TARGET_DIR="${LLAMA_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tracing-spec-decode/llama-target}"

./install-tools.sh
LLAMA_MODEL="$(./fetch-model.sh)"
export LLAMA_MODEL
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --check; else echo "skipped: no rustfmt here"; fi
# One profile, so that llama.cpp is built once; one test at a time, since each keeps the processors busy.
cargo test --release --locked -- --test-threads=1
if cargo clippy --version >/dev/null 2>&1; then
  cargo clippy --release --locked --all-targets -- -D warnings
else
  echo "skipped: no clippy here"
fi
python3 check_readme.py
