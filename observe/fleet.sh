#!/usr/bin/env bash
# 16 engine processes on one Collector: see check/fleet.py.
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=$(observe/programs/build.sh | tail -n 1)
cargo build --quiet --release --features otel-trace --example replica
examples=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')/release/examples
exec python3 observe/check/fleet.py "$binaries" "$examples/replica"
