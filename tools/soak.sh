#!/usr/bin/env bash
# The long run of tests/a_long_run_stays_exact_and_flat.rs: 10^8 steps, or as many as asked for. Its result is kept under
# benches/results/, with the machine and the date.
#
#   tools/soak.sh [STEPS]
set -euo pipefail
cd "$(dirname "$0")/.."
steps="${1:-100000000}"
mkdir -p benches/results
said=$(mktemp)
trap 'rm -f "$said"' EXIT

SOAK_STEPS="$steps" nice cargo test --release --test a_long_run_stays_exact_and_flat -- --nocapture 2>&1 | tee "$said"
SAID="$said" python3 - <<'PY'
import datetime, json, os, platform, re

said = open(os.environ["SAID"]).read()
result = json.loads(re.search(r"soak: (\{.*\})", said).group(1))
processor = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())
date = datetime.date.today().isoformat()
result["machine"] = f"{os.cpu_count()} x {processor.group(1) if processor else platform.machine()}, shared"
result["date"] = date
path = f"benches/results/soak-{date}.json"
json.dump(result, open(path, "w"), indent=2)
open(path, "a").write("\n")
print(f"kept in {path}")
PY
