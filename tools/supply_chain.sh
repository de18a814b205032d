#!/usr/bin/env bash
# What users of the crate depend on: licences, bans and sources of its dependencies, every combination of features, the
# stated MSRV, the oldest versions that are asked for, the package, and the public API.
#
#   tools/supply_chain.sh              everything
#   tools/supply_chain.sh CHECK...     some: deny features msrv minimal package api
#   tools/supply_chain.sh update-api   writes docs/public-api.txt anew, when a change of it is meant
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/installed.sh
listing=docs/public-api.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

deny() {
  tool cargo-deny 0.20.2 || { skipped "no cargo-deny: licences, bans and sources"; return; }
  cargo deny check licenses bans sources
  if [ -n "${ADVISORIES:-}" ]; then
    cargo deny check advisories
  else
    skipped "advisories: set ADVISORIES=1 where their database can be fetched"
  fi
}

features() {
  tool cargo-hack 0.6.46 || { skipped "no cargo-hack: features each alone and together"; return; }
  cargo hack clippy --quiet --feature-powerset -- -D warnings 2>"$folder/said" || { cat "$folder/said"; return 1; }
  echo "$(grep -c 'running .cargo clippy' "$folder/said") combinations build without a warning"
}

# Older compilers have no let chains, so this is the oldest that can be.
msrv() {
  local version
  version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  toolchain "$version" || { skipped "no Rust $version: the MSRV"; return; }
  cargo "+$version" check --quiet --locked --all-features --target-dir "$CARGO_TARGET_DIR/msrv"
  echo "builds with Rust $version"
}

# The versions that Cargo.toml names, not those of the lock file: in a copy, since it changes both files.
minimal() {
  toolchain nightly || { skipped "no nightly Rust: minimal versions"; return; }
  tool cargo-hack 0.6.46 && tool cargo-minimal-versions 0.1.38 ||
    { skipped "no cargo-minimal-versions: minimal versions"; return; }
  mkdir "$folder/tree"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$folder/tree"
  (cd "$folder/tree" && CARGO_TARGET_DIR="$CARGO_TARGET_DIR/minimal" cargo minimal-versions check --direct --all-features) \
    >"$folder/said" 2>&1 || { cat "$folder/said"; return 1; }
  echo "builds with the oldest versions that it asks for"
}

# No warning but that the crate has no address yet and that tests stay at home; small; and what is in it builds.
package() {
  local said crate files size
  said=$(cargo package --allow-dirty --no-verify -p tracing-spec-decode 2>&1) || { echo "$said"; return 1; }
  if grep '^warning' <<<"$said" | grep -vE 'no documentation, homepage or repository|ignoring (test|benchmark)'; then
    return 1
  fi
  crate=$(ls -t "$CARGO_TARGET_DIR"/package/tracing-spec-decode-*.crate | head -n 1)
  mkdir "$folder/package"
  tar -xzf "$crate" -C "$folder/package"
  files=$(tar -tzf "$crate" | wc -l) size=$(stat -c %s "$crate")
  echo "the package: $files files, $((size / 1024)) KiB compressed"
  if [ "$size" -gt $((256 * 1024)) ]; then echo "the package is large"; return 1; fi
  (cd "$folder/package/$(basename "$crate" .crate)" && cargo check --quiet --examples --all-features)
}

list_api() {
  cargo +nightly public-api --all-features -sss 2>"$folder/said" || { cat "$folder/said"; return 1; }
}

can_list_api() {
  toolchain nightly || { skipped "no nightly Rust: the public API"; return 1; }
  tool cargo-public-api 0.52.0 || { skipped "no cargo-public-api: the public API"; return 1; }
}

api() {
  can_list_api || return 0
  list_api >"$folder/public-api.txt"
  diff -u "$listing" "$folder/public-api.txt" ||
    { echo "the public API has changed: tools/supply_chain.sh update-api if that is meant"; return 1; }
  echo "the public API is as in $listing"
}

update-api() {
  can_list_api || return 1
  list_api >"$folder/public-api.txt"
  cp "$folder/public-api.txt" "$listing"
}

for check in "${@:-deny features msrv minimal package api}"; do
  for one in $check; do
    printf -- '-- %s\n' "$one"
    "$one"
  done
done
