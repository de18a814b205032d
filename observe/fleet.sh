#!/usr/bin/env bash
# 16 engine processes on one Collector: see check/fleet.py.
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=$(observe/programs/build.sh | tail -n 1)
examples=$(observe/programs/examples.sh)
exec python3 observe/check/fleet.py "$binaries" "$examples/replica"
