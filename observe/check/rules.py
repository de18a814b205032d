"""Recording rules on live data: each gives a value, and each ratio is its counters' increases, divided."""

import re
import time

from stack import OBSERVE, get, wait_for

SERVICE = 'job="replica"'

# rate() reaches back to where a counter may have been 0, for each series by itself: over half a minute that is seen.
# The unit tests are exact.
NEAR = 0.02


def names():
    text = "".join(path.read_text() for path in sorted((OBSERVE / "prometheus" / "rules").glob("*.yaml")))
    return re.findall(r"- record: (\S+)", text)


def settle(prometheus):
    """Waits until every group has been evaluated twice from now on: some groups read what others record."""

    def evaluated():
        groups = get(f"{prometheus.url}/api/v1/rules")["data"]["groups"]
        return min(time.mktime(time.strptime(group["lastEvaluation"][:19], "%Y-%m-%dT%H:%M:%S")) for group in groups)

    for _ in range(2):
        now = evaluated()
        wait_for(lambda: evaluated() > now + 1, "an evaluation of all rules", 20)


def check(ledger, prometheus, way, lives):
    settle(prometheus)
    for name in names():
        ledger.check(f"{way}: {name} has values", *settled(prometheus, name))
    groups = get(f"{prometheus.url}/api/v1/rules")["data"]["groups"]
    errors = [rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")]
    alerts = [rule["name"] for group in groups for rule in group["rules"] if rule["type"] == "alerting"]
    ledger.check(
        f"{way}: no rule fails, {len(alerts)} of them alerts", not errors and len(alerts) >= 4, errors or "none"
    )

    added = {
        name: sum(prometheus.increases(f"spec_decode_{name}_total{{{SERVICE}}}"))
        for name in ("drafts", "draft_tokens", "accepted_tokens", "emitted_tokens")
    }
    for name, expected in (
        ("draft_acceptance_rate:ratio_rate5m", added["accepted_tokens"] / added["draft_tokens"]),
        ("system_efficiency:ratio_rate5m", added["emitted_tokens"] / (added["draft_tokens"] + added["drafts"])),
        ("mean_acceptance_length:rate5m", 1 + added["accepted_tokens"] / added["drafts"]),
        ("mean_draft_length:rate5m", added["draft_tokens"] / added["drafts"]),
    ):
        for level in ("service", "replica"):
            found = prometheus.value(f"{level}:spec_decode_{name}{{{SERVICE}}}")
            ledger.equal(f"{way}: {level}:spec_decode_{name} is the counters divided", found, expected, rel_tol=NEAR)

    positions = len(lives[0]["accepted_tokens_per_position"])
    at = [f'{SERVICE},spec_decode_position="{position}"' for position in range(positions)]
    per_position = [prometheus.increases(f"spec_decode_accepted_tokens_per_position_total{{{one}}}") for one in at]
    before = [added["drafts"]] + [sum(increase) for increase in per_position]
    for position, increase in enumerate(per_position):
        rule = f"service:spec_decode_position_conditional_acceptance:ratio_rate5m{{{at[position]}}}"
        found = prometheus.value(rule)
        ledger.equal(
            f"{way}: conditional acceptance at position {position}",
            found,
            sum(increase) / before[position],
            rel_tol=NEAR,
        )
    planner(ledger, prometheus, way, lives)


def settled(prometheus, name):
    result = wait_for(lambda: prometheus.ask(name), name, 15)
    return len(result) > 0, f"{len(result)} series, {float(result[0]['value'][1]):.4g}"


def planner(ledger, prometheus, way, lives):
    """What NVIDIA Dynamo's planner asks of vLLM, across a restart, and how much was really accepted."""
    labels = '{model_name="toy-8b",engine="0"}'
    accepted, drafts = (f"vllm:spec_decode_num_{name}_total{labels}" for name in ("accepted_tokens", "drafts"))
    ledger.equal(
        f"{way}: the restart is a reset of vllm:spec_decode_num_drafts_total",
        prometheus.value(f"sum(resets({drafts}[5m]))"),
        1.0,
    )
    found = prometheus.value(f"1 + sum(rate({accepted}[5m]))/sum(rate({drafts}[5m]))")
    own = 1 + sum(life["accepted_tokens"] for life in lives) / sum(life["drafts"] for life in lives)
    # The first export of the first life is where rate() begins, so that a second of 24 is not in it.
    ledger.equal(f"{way}: the planner's acceptance length, across a restart", found, own, rel_tol=0.05)
    per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    at = prometheus.value(f'{per_position}{{model_name="toy-8b",engine="0",position="2"}}')
    ledger.equal(f"{way}: {per_position} at position 2", at, float(lives[-1]["accepted_tokens_per_position"][2]))
