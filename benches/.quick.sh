#!/usr/bin/env bash
# What a step costs, in instructions: the slope between runs of 20,000 and 60,000 steps under callgrind, which does not
# depend on the machine's load. Prints a table, and what our layer adds to a filtered layer that does nothing.
#
#   benches/instructions.sh            the table
#   benches/instructions.sh --guard    fails as well if a step costs more than the budget
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null 2>&1; then
  echo "skipped: no valgrind here, so no instructions are counted"
  exit 0
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

# slope STACK STEP
slope() {
  local few many
  few=$(instructions "$1" "$2" 20000)
  many=$(instructions "$1" "$2" 60000)
  echo $(((many - few) / 40000))
}

declare -A cost
printf '%-16s %8s %8s %8s %8s\n' 'stack' two whole full other
for stack in ${STACKS:-none registry noop ours ours_device ours_host filtered filtered_noop filtered_ours}; do
  row=()
  for step in two whole full other; do
    cost[$stack,$step]=$(slope "$stack" "$step")
    row+=("${cost[$stack,$step]}")
  done
  printf '%-16s %8s %8s %8s %8s\n' "$stack" "${row[@]}"
done

echo
