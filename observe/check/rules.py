"""Recording rules on live data: each gives a value, and each is what its counters' rates make at its evaluation."""

import math
import re
import time

from stack import OBSERVE, get, wait_for

SERVICE = 'job="replica"'


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

    for level in ("service", "replica"):
        ratios(ledger, prometheus, way, level)
    conditional(ledger, prometheus, way, len(lives[0]["accepted_tokens_per_position"]))
    planner(ledger, prometheus, way, lives)


def evaluated(ledger, prometheus, what, rule, expected):
    """The rule's newest value is what `expected` makes of Prometheus as it was then.

    One evaluation may overtake another, or a scrape: what is wrong is so in the next one too.
    """
    newest, should = None, None

    def agree():
        nonlocal newest, should
        stamp = prometheus.value(f"timestamp({rule})")
        then = prometheus.at(stamp)
        newest = then.value(rule)
        should = expected(then)
        return math.isclose(newest, should, rel_tol=1e-9)

    try:
        wait_for(agree, what, 10)
    except TimeoutError:
        pass
    except TypeError as error:
        ledger.check(what, False, f"{newest}, and a series of it has no value: {error}")
        return
    ledger.equal(what, newest, should, rel_tol=1e-9)


def ratios(ledger, prometheus, way, level):
    """Counters divided, and each of these what its series' rates add up to."""

    def rate(then, name):
        return then.value(f"{level}:spec_decode_{name}:rate5m{{{SERVICE}}}")

    counters = ("drafts", "draft_tokens", "accepted_tokens", "emitted_tokens")
    for name in counters:
        evaluated(
            ledger,
            prometheus,
            f"{way}: {level}:spec_decode_{name} is the sum of the rates",
            f"{level}:spec_decode_{name}:rate5m{{{SERVICE}}}",
            lambda then, name=name: then.value(f"sum(rate(spec_decode_{name}_total{{{SERVICE}}}[5m]))"),
        )
    for name, expected in (
        ("draft_acceptance_rate:ratio_rate5m", lambda drafts, drafted, accepted, emitted: accepted / drafted),
        ("system_efficiency:ratio_rate5m", lambda drafts, drafted, accepted, emitted: emitted / (drafted + drafts)),
        ("mean_acceptance_length:rate5m", lambda drafts, drafted, accepted, emitted: 1 + accepted / drafts),
        ("mean_draft_length:rate5m", lambda drafts, drafted, accepted, emitted: drafted / drafts),
    ):
        evaluated(
            ledger,
            prometheus,
            f"{way}: {level}:spec_decode_{name} is the counters divided",
            f"{level}:spec_decode_{name}{{{SERVICE}}}",
            lambda then, expected=expected: expected(*(rate(then, name) for name in counters)),
        )


def conditional(ledger, prometheus, way, positions):
    """Of the drafts accepted up to a position, those accepted there too."""

    def reached(then, position):
        if position == 0:
            return then.value(f"service:spec_decode_drafts:rate5m{{{SERVICE}}}")
        at = f'{SERVICE},spec_decode_position="{position - 1}"'
        return then.value(f"service:spec_decode_accepted_tokens_per_position:rate5m{{{at}}}")

    for position in range(positions):
        at = f'{SERVICE},spec_decode_position="{position}"'
        evaluated(
            ledger,
            prometheus,
            f"{way}: conditional acceptance at position {position}",
            f"service:spec_decode_position_conditional_acceptance:ratio_rate5m{{{at}}}",
            lambda then, position=position: reached(then, position + 1) / reached(then, position),
        )


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
    added = [sum(prometheus.increases(selector)) for selector in (accepted, drafts)]
    # rate() reaches back by at most half the time between samples, less where a counter may have been 0.
    reach = 1 / prometheus.value(f"count_over_time({drafts}[5m])")
    ledger.equal(
        f"{way}: the planner's acceptance length, across a restart", found, 1 + added[0] / added[1], rel_tol=reach
    )
    per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    at = prometheus.value(f'{per_position}{{model_name="toy-8b",engine="0",position="2"}}')
    ledger.equal(f"{way}: {per_position} at position 2", at, float(lives[-1]["accepted_tokens_per_position"][2]))
