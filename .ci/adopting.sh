#!/usr/bin/env bash
# docs/adopting.md shows the true differences between the engines in tests/adopting, and to adopt is a short one. The
# example for the metrics crate runs as it is.
#
#   .ci/adopting.sh          check, exit 1 where the page differs
#   .ci/adopting.sh N        print the N-th difference, to put it into the page
set -euo pipefail
cd "$(dirname "$0")/../tests/adopting"
page=../../docs/adopting.md
pairs=("before.rs after.rs" "after.rs with_counters.rs")

difference() {
  local old new
  read -r old new <<<"${pairs[$1 - 1]}"
  # 1 is "they differ"; anything above is an error.
  diff -U1 --show-function-line='^ *\(pub \)\?\(async \)\?fn ' --label "$old" --label "$new" "$old" "$new" || (($? == 1))
}

shown() { awk -v wanted="$1" '/^```diff$/ { block++; inside = 1; next } /^```$/ { inside = 0 } inside && block == wanted' "$page"; }

if (($#)); then
  difference "$1"
  exit
fi
for number in 1 2; do
  diff --label "$page" --label "${pairs[number - 1]}" <(shown "$number") <(difference "$number") ||
    { echo "difference $number of docs/adopting.md is not the true one"; exit 1; }
done
lines=$(difference 1 | tail -n +3 | grep -c '^[-+]')
((lines < 30)) || { echo "$lines lines of difference, 30 or more"; exit 1; }
echo "docs/adopting.md shows the true differences; to adopt takes $lines lines"

text=$(cargo run --quiet --example metrics_crate)
for series in 'spec_decode_accepted_tokens_total{spec_decode_engine="code"} 21' \
  'spec_decode_anomalies_total{spec_decode_engine="code",spec_decode_anomaly_type="incomplete"} 1'; do
  grep -qxF "$series" <<<"$text" || { echo "examples/metrics_crate.rs did not print: $series"; exit 1; }
done
echo "examples/metrics_crate.rs: $(grep -c '^spec_decode_' <<<"$text") series"
