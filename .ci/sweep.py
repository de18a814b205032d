"""Reads the JSON of a sweep: what was expected from one k has to be what the others then measured."""

import json
import sys

result = json.loads(sys.stdin.readlines()[-1])
runs = {run["num_spec_tokens"]: run for run in result["sweep"]}
measured = {k: run["measured_speedup"] for k, run in runs.items()}
expected = {k: run["expected_speedup"] for k, run in runs.items()}
points = {(point["name"], point["attributes"]["spec_decode.engine"]): point["value"] for point in result["exported"]}
for k, run in runs.items():
    for name in "drafts", "draft_tokens", "accepted_tokens", "emitted_tokens":
        exported = points.get((f"spec_decode.{name}", run["engine"]))
        assert exported == run[name], f"k = {k}: {name} is {run[name]}, {exported} exported"
    # The passes are real sleeps, and the machine is shared.
    assert abs(expected[k] / measured[k] - 1) < 0.15, f"k = {k}: expected {expected[k]}, measured {measured[k]}"
best, found = max(expected, key=expected.get), max(measured, key=measured.get)
assert best == result["best"]["expected"] and found == result["best"]["measured"], result["best"]
assert measured[best] > 0.93 * measured[found], f"best expected {best}, best measured {found}: {measured}"
print(f"best expected: {best}, best measured: {found}; " +
      ", ".join(f"k = {k}: {measured[k]:.2f} ({expected[k]:.2f} expected)" for k in sorted(runs)))
