#!/usr/bin/env bash
# The search for faults that nobody has thought of.
#
#   tools/search.sh loom               every order of what threads do at once, on the lock-free modules: seconds
#   tools/search.sh fuzz [SECONDS]     each fuzz target for so long (60), on a corpus kept in fuzz/corpus
#   tools/search.sh mutants [FILE...]  which changes of collector, metrics, step and source no test notices: an hour
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/installed.sh

loom() { cargo run --quiet --release --manifest-path loom/Cargo.toml --target-dir "$CARGO_TARGET_DIR/loom"; }

fuzz() {
  toolchain nightly || { skipped "no nightly Rust: fuzzing"; return; }
  tool cargo-fuzz 0.13.2 || { skipped "no cargo-fuzz: fuzzing"; return; }
  local target
  # Leaks are not looked for: the SDK's readers leave threads behind that end a little later.
  for target in span_fields interleavings; do
    cargo +nightly fuzz run --target-dir "$CARGO_TARGET_DIR/fuzz" "$target" -- \
      -max_total_time="${1:-60}" -max_len=8192 -len_control=0 -verbosity=0 -print_final_stats=1 -detect_leaks=0
  done
}

# The tests that need no driver and no long run; without debug information a mutant is built in seconds.
mutants() {
  tool cargo-mutants 27.1.0 || { skipped "no cargo-mutants: mutants"; return; }
  local files=() tests=() file
  for file in "${@:-collector.rs metrics.rs step.rs source.rs}"; do
    for file in $file; do files+=(--file "src/$file"); done
  done
  for file in tests/*.rs; do
    case "$file" in
    tests/cuda_* | tests/quickstart_* | tests/speculative_* | tests/a_long_run_*) ;;
    *) tests+=(--test "$(basename "$file" .rs)") ;;
    esac
  done
  (unset CARGO_TARGET_DIR && CARGO_PROFILE_DEV_DEBUG=0 nice cargo mutants "${files[@]}" --jobs 1 --no-shuffle \
    --timeout 120 --output "$(mktemp -d)" -- --lib "${tests[@]}")
}

case "${1:-}" in
loom | fuzz | mutants) "$@" ;;
*) sed -n '4,6s/^# *//p' "$0" && exit 2 ;;
esac
