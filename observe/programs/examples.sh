#!/usr/bin/env bash
# Builds the engines that the checks run, and prints where they are.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build --quiet --release --features otel-trace --example quickstart --example replica
target=$(cargo metadata --format-version 1 --no-deps |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
echo "$target/release/examples"
