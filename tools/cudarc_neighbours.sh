#!/usr/bin/env bash
# Builds the crate with its feature `cuda` beside other users of cudarc: an older cudarc whose version is fixed, which is
# run as well, on the simulated driver; and candle's way of linking the driver, which needs a toolkit to be linked, so
# that it is only checked.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# neighbour NAME DEPENDENCY COMMAND: an engine on that cudarc, checked or built.
neighbour() {
  local name=$1 dependency=$2 command=$3
  mkdir -p "$folder/$name/src"
  cp "$root/tools/neighbour/main.rs" "$folder/$name/src/"
  cat >"$folder/$name/Cargo.toml" <<TOML
[package]
name = "$name"
version = "0.0.0"
edition = "2024"

[dependencies]
neighbour = { package = "cudarc", $dependency }
tracing = "0.1"
tracing-subscriber = { version = "0.3", default-features = false, features = ["registry"] }
tracing-spec-decode = { path = "$root", default-features = false, features = ["cuda"] }

[workspace]
TOML
  CARGO_TARGET_DIR="$target/neighbours" cargo "$command" --quiet --manifest-path "$folder/$name/Cargo.toml"
}

# An older cudarc looks all of the driver's functions up at once: the simulator's, and the rest, which nobody calls, as
# functions that answer "not supported" (801).
driver_for_older_cudarc() {
  local into=$1
  cargo build --quiet --manifest-path "$root/Cargo.toml" -p simcuda
  mkdir -p "$into"
  # The simulator is known to the loader as libcuda.so, which is the name of what is made of it here.
  python3 - "$target/debug/libsimcuda.so" "$into/libsimu.so" <<'PYTHON'
import sys

original, renamed = sys.argv[1:]
library = open(original, "rb").read()
open(renamed, "wb").write(library.replace(b"libcuda.so\0", b"libsimu.so\0"))
PYTHON
  local bindings
  bindings=$(cargo metadata --quiet --format-version 1 --manifest-path "$folder/older-cudarc/Cargo.toml" |
    python3 -c 'import json, os, sys
print(next(os.path.dirname(package["manifest_path"]) for package in json.load(sys.stdin)["packages"]
           if package["name"] == "cudarc" and package["version"].startswith("0.17")))')/src/driver/sys/mod.rs
  comm -13 <(nm -D --defined-only "$into/libsimu.so" | awk '{ print $3 }' | sort) \
    <(grep -oE 'get\(b"cu[A-Za-z0-9_]+' "$bindings" | sed 's/.*b"//' | sort -u) |
    sed 's/.*/int &(void) { return 801; }/' >"$folder/rest.c"
  cc -shared -fPIC -o "$into/libcuda.so" "$folder/rest.c" -L"$into" -Wl,--no-as-needed -l:libsimu.so -Wl,-rpath,"\$ORIGIN"
}

neighbour older-cudarc 'version = "0.17.8", default-features = false, features = ["std", "driver", "cuda-12080", "dynamic-loading"]' build
driver_for_older_cudarc "$folder/driver"
echo "older-cudarc: $(LD_LIBRARY_PATH="$folder/driver" "$target/neighbours/debug/older-cudarc")"

# As candle-core asks for it: linked, with the version taken from the build system.
neighbour candles-features 'version = "0.19.10", default-features = false, features = ["std", "driver", "cuda-version-from-build-system", "dynamic-linking"]' check
echo "candles-features: builds"
