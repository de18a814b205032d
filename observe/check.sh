#!/usr/bin/env bash
# The real programs, with the files of this folder: engines through a Collector into Jaeger and Prometheus, the rules,
# the dashboard, and a Collector that fails in every way. One line for each assertion; what was skipped is said.
set -uo pipefail
cd "$(dirname "$0")/.."
status=0

binaries=$(observe/programs/build.sh | tail -n 1)
PATH="$binaries:$PATH"
if ! command -v promtool >/dev/null; then
  echo "no Prometheus was built: installing the distribution's, which can only scrape" >&2
  timeout 300 apt-get install -y -qq --no-install-recommends prometheus >/dev/null </dev/null || true
fi

examples=$(observe/programs/examples.sh) || exit 1

printf '\n-- rules, alerts and dashboard by themselves\n'
if command -v promtool >/dev/null; then
  for command in "check rules observe/prometheus/rules" "test rules observe/prometheus/tests"; do
    if found=$(promtool $command/*.yaml 2>&1); then
      echo "ok    promtool $command: $(grep -c SUCCESS <<<"$found") files"
    else
      echo "FAIL  promtool $command: $found"
      status=1
    fi
  done
else
  echo "skip  promtool: not to be had here"
fi
python3 observe/check/links.py || status=1
observe/check/schema.sh || status=1

python3 observe/check/chain.py "$binaries" "$examples/quickstart" "$examples/replica" || status=1
python3 observe/check/failing.py "$binaries" "$examples/quickstart" "$examples/replica" || status=1
exit $status
