#!/usr/bin/env bash
# What a step costs, in instructions: the slope between runs of 20,000 and 60,000 steps under callgrind, which does not
# depend on the machine's load.
#
#   benches/instructions.sh            the table, and what our layer adds to a filtered layer that does nothing
#   benches/instructions.sh --guard    only what our layer adds; fails if that is above the ceilings below
set -euo pipefail
cd "$(dirname "$0")/.."

# Stack, kind of step, the most that it may add, what is promised for it (`-`: nothing). A ceiling is what was reached,
# and a little for another compiler: lower it with the figure.
ceilings='
ours        two    500 550
ours        whole  550 550
ours        full   950 950
ours        phased 950 950
ours_device two    550 550
ours_device whole  600 -
ours_device full   950 950
ours_host   two    700 -
ours_host   whole 1400 -
ours_host   full  1750 -
'

if ! command -v valgrind >/dev/null 2>&1; then
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends valgrind; } >/dev/null 2>&1; then
    echo "skipped: there is no valgrind and it can't be installed, so no instructions are counted"
    exit 0
  fi
fi

binary=$(cargo bench --no-run --bench step_cost --message-format=json 2>/dev/null |
  python3 -c 'import json, sys
for line in sys.stdin:
    row = json.loads(line)
    if row.get("reason") == "compiler-artifact" and row["target"]["name"] == "step_cost" and row.get("executable"):
        print(row["executable"])')

# instructions STACK STEP COUNT
instructions() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect="*step_cost::steps::step_$2*" \
    "$binary" "$1" "$2" "$3" 2>&1 | awk '/Collected/ { print $4 }'
}

declare -A cost
# measure STACK STEP
measure() {
  [ -z "${cost[$1,$2]:-}" ] || return 0
  local few many
  few=$(instructions "$1" "$2" 20000)
  many=$(instructions "$1" "$2" 60000)
  cost[$1,$2]=$(((many - few) / 40000))
}

if [ "${1:-}" != --guard ]; then
  printf '%-16s %8s %8s %8s %8s %8s\n' 'stack' two whole full phased other
  for stack in none registry noop ours ours_device ours_host ours_sampled filtered filtered_noop filtered_ours fmt otel_trace; do
    row=()
    for step in two whole full phased other; do
      measure "$stack" "$step"
      row+=("${cost[$stack,$step]}")
    done
    printf '%-16s %8s %8s %8s %8s %8s\n' "$stack" "${row[@]}"
  done
  measure otel_metrics event
  measure none by_hand
  echo
  echo "the OpenTelemetry metrics layer, an event per step: ${cost[otel_metrics,event]}"
  echo "three counters, added to by hand: ${cost[none,by_hand]}"
  echo "beside a layer with a filter of its own, a span that is not ours: $((cost[filtered_ours,other] - cost[filtered,other])) more"
  awk -v trace=$((cost[otel_trace,two] - cost[registry,two])) -v ours=$((cost[ours,two] - cost[noop,two])) \
    -v whole=$((cost[ours,two] - cost[registry,two])) 'BEGIN {
      printf "the OpenTelemetry trace layer adds %d to a registry, which is %.1f times what ours adds to a filtered layer", trace, trace / ours
      printf " that does nothing, and %.1f times what ours and its filter add to a registry\n", trace / whole
    }'
  echo
fi

over=0
while read -r stack step most promise; do
  [ -n "$stack" ] || continue
  measure noop "$step"
  measure "$stack" "$step"
  added=$((cost[$stack,$step] - cost[noop,$step]))
  printf '%-12s adds %5d to a step of kind %-6s ceiling %4d, promised %s\n' "$stack" "$added" "$step" "$most" "$promise"
  if [ "$added" -gt "$most" ]; then over=1; fi
done <<<"$ceilings"

if [ "${1:-}" = --guard ] && [ "$over" = 1 ]; then
  echo "a step costs more than its ceiling" >&2
  exit 1
fi
