# Sourced by the scripts beside it: where built tools are kept, outside the clone, and how one is had.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tracing-spec-decode"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}"
export PATH="$cache/tools/bin:$PATH"

skipped() { echo "skipped: $*"; }

toolchain() { rustup run "$1" rustc --version >/dev/null 2>&1; }

# tool NAME VERSION: there is one, or it can be built into the cache. Unoptimized: built once, run for seconds.
tool() {
  if cargo install --root "$cache/tools" --list 2>/dev/null | grep -q "^$1 v$2:"; then return 0; fi
  echo "building $1 $2"
  CARGO_TARGET_DIR="$cache/tools/target" cargo install --quiet --locked --debug --root "$cache/tools" "$1@$2" >&2
}
