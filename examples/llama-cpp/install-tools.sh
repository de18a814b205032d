#!/usr/bin/env bash
# What the build of llama.cpp and the check take and is not here: cmake, a C++ compiler, libclang; patch.
set -euo pipefail
missing=()
command -v cmake >/dev/null 2>&1 || missing+=(cmake)
command -v patch >/dev/null 2>&1 || missing+=(patch)
command -v c++ >/dev/null 2>&1 || missing+=(g++)
# bindgen looks for the library, and for the headers that come with the compiler.
command -v clang >/dev/null 2>&1 || missing+=(clang)
{ [ -n "${LIBCLANG_PATH:-}" ] || ldconfig -p | grep -q 'libclang[-.]' || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*'; } \
  >/dev/null 2>&1 || missing+=(libclang-dev)
if [ "${#missing[@]}" -gt 0 ]; then
  echo "installing ${missing[*]}" >&2
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
