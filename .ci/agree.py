"""Reads the quickstart's JSON: the crate's metrics, the engine's own counts and the exported points must agree."""

import json
import math
import sys

result = json.loads(sys.stdin.readlines()[-1])
metrics, engine, exported = result["metrics"], result["engine"], result["exported"]
names = {"drafts": "drafts", "draft_tokens": "draft_tokens", "accepted_tokens": "accepted_tokens",
         "emitted_tokens": "emitted_tokens", "num_spec_tokens": "num_spec_tokens"}
wrong = []
for name, metric in names.items():
    values = metrics[name], engine[name], exported.get("spec_decode." + metric)
    if len(set(values)) != 1:
        wrong.append(f"{name}: {values}")
positions = [metrics["accepted_per_position"], engine["accepted_per_position"],
             exported.get("spec_decode.accepted_tokens_per_position", [])]
if positions[0] != positions[1] or positions[0] != positions[2]:
    wrong.append(f"accepted_per_position: {positions}")
drafts, tokens = exported["spec_decode.drafts"], exported["spec_decode.draft_tokens"]
accepted, emitted = exported["spec_decode.accepted_tokens"], exported["spec_decode.emitted_tokens"]
rates = {"draft_acceptance_rate": (accepted, tokens), "system_efficiency": (emitted, tokens + drafts),
         "mean_acceptance_length": (drafts + accepted, drafts)}
for name, (above, below) in rates.items():
    for source in metrics, engine:
        agrees = math.isclose(source[name], above / below, rel_tol=1e-12) if below else source[name] is None
        if not agrees:
            wrong.append(f"{name}: {source[name]} is not {above} / {below}")
if wrong:
    sys.exit("the counts disagree: " + "; ".join(wrong))
if (drafts > 0) != (sys.argv[1:] != ["--no-drafts"]):
    sys.exit(f"{drafts} drafts were verified")
print(f"all agree: {drafts} drafts, {tokens} draft tokens, {accepted} accepted, {emitted} emitted")
