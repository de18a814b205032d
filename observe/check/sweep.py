"""The quickstart's sweep over k: its own numbers are in Prometheus, and the rules make the same of them as it does."""

from rules import evaluated
from stack import run_json, wait_for

SERVICE = "sweep"
K = "0,1,2,3,4,6,8"
LARGEST = 'spec_decode_engine="k=8"'
COUNTS = ["drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"]
DRAFTED, PLAIN = 'spec_decode_drafted="true"', 'spec_decode_drafted="false"'
STEP_TIME, STEPS = "step_time_seconds", "steps"


def run(quickstart, environment):
    return run_json([quickstart, "--json", "--sweep", K], environment)[0]


def total(name, labels=""):
    return f'sum(spec_decode_{name}_total{{job="{SERVICE}",{labels}}})'


def expected(count, plain_step):
    """What follows for each k up to 8 from the counts of the engine with the largest."""
    drafted = count(STEPS, DRAFTED)
    step, draft = count(STEP_TIME, DRAFTED) / drafted, count("draft_time_seconds") / drafted
    in_use = count("draft_tokens") / count("drafts")
    tokens, speedups = 1, {0: 1}
    for k in range(1, 9):
        at = f'spec_decode_position="{k - 1}"'
        tokens += count("accepted_tokens_per_position", at) / count("draft_tokens_per_position", at)
        speedups[k] = tokens * plain_step / (step - draft + draft / in_use * k)
    return speedups


def numbers(ledger, prometheus, way, own):
    """What the program printed, to the last token; what is divided, to the last digit but three."""
    steps = own["sweep"][0]["plain_steps"] + sum(run["drafted_steps"] for run in own["sweep"])
    try:
        wait_for(lambda: prometheus.value(total(STEPS)) == steps, "the last export", 20)
    except TimeoutError:
        pass
    # The program holds every k against the plain steps of all.
    baseline = f"{total(STEP_TIME, PLAIN)} / {total(STEPS, PLAIN)}"
    plain_steps = prometheus.value(total(STEPS, PLAIN))
    for run in own["sweep"]:
        engine = f'spec_decode_engine="{run["engine"]}"'
        found = {name: prometheus.value(total(name, engine)) for name in COUNTS}
        found["drafted_steps"] = prometheus.value(total(STEPS, f"{engine},{DRAFTED}"))
        found["plain_steps"] = plain_steps
        ledger.equal(f"{way}: counts of {run['engine']}", found, {name: run[name] or 0 for name in found})

        if run["num_spec_tokens"]:
            kind = f"{engine},{DRAFTED}"
            rate = prometheus.value(f"{total('tokens', kind)} / {total(STEP_TIME, kind)}")
            ledger.equal(f"{way}: tokens per second of {run['engine']}", rate, run["tokens_per_second"], rel_tol=1e-12)
            measured = prometheus.value(
                f"{total('emitted_tokens', engine)} / {total('drafts', engine)} * {baseline}"
                f" / ({total(STEP_TIME, kind)} / {total(STEPS, kind)})"
            )
            ledger.equal(f"{way}: speed-up of {run['engine']}", measured, run["measured_speedup"], rel_tol=1e-12)

    def count(name, labels=""):
        return prometheus.value(total(name, f"{LARGEST},{labels}"))

    by_k = expected(count, prometheus.value(baseline))
    for run in own["sweep"]:
        found = by_k[run["num_spec_tokens"]]
        what = f"{way}: expected speed-up of {run['engine']}, from the counts of the largest"
        ledger.equal(what, found, run["expected_speedup"], rel_tol=1e-12)
    points(ledger, prometheus, way, own["exported"])


def points(ledger, prometheus, way, exported):
    """Every point of the program's last export, by name and attributes."""

    def plain(name):
        return name.replace(".", "_")

    by_name = {}
    for point in exported:
        labels = frozenset((plain(name), value) for name, value in point["attributes"].items())
        by_name.setdefault(point["name"], {})[labels] = point["value"]
    ledger.check(f"{way}: what was exported", len(by_name) > 15, f"{len(exported)} points of {len(by_name)} metrics")
    for name, own in sorted(by_name.items()):
        selector = f'{{__name__=~"{plain(name)}(_seconds)?(_total|_ratio)?",job="{SERVICE}"}}'
        found = {}
        for series in prometheus.ask(f"last_over_time({selector}[5m])"):
            ours = [pair for pair in series["metric"].items() if pair[0].startswith(("spec_decode_", "error_type"))]
            found[frozenset(ours)] = float(series["value"][1])
        differ = [(found.get(at), own[at], *at) for at in own if found.get(at) != own[at]]
        ledger.check(f"{way}: each point of {name}", not differ, differ or f"{len(own)}, equal")


def payoff(ledger, prometheus, way):
    """The rules, on live data: the speed-up and what is expected by k, from the rates of the counters."""

    def rule(name, labels=""):
        return f'engine:spec_decode_{name}{{job="{SERVICE}",{LARGEST},{labels}}}'

    def holds(what, newest, expected):
        evaluated(ledger, prometheus, f"{way}: {what}", newest, expected)

    def rates(then):
        return lambda name, labels="": then.value(rule(f"{name}:rate5m", labels))

    def step(then, kind):
        rate = rates(then)
        return rate(STEP_TIME, kind) / rate(STEPS, kind)

    def speedup(then):
        rate = rates(then)
        return rate("emitted_tokens") / rate("drafts") * step(then, PLAIN) / step(then, DRAFTED)

    inputs = [(name, "") for name in (*COUNTS, "draft_time_seconds") if name != "accepted_tokens"]
    inputs += [(name, kind) for name in (STEPS, STEP_TIME) for kind in (PLAIN, DRAFTED)]
    inputs += [
        (f"{name}_per_position", f'spec_decode_position="{position}"')
        for name in ("accepted_tokens", "draft_tokens")
        for position in range(8)
    ]
    for name, labels in inputs:
        series = f'spec_decode_{name}_total{{job="{SERVICE}",{LARGEST},{labels}}}'
        holds(
            f"{name} of k=8 {{{labels}}} is the sum of the rates",
            rule(f"{name}:rate5m", labels),
            lambda then, series=series: then.value(f"sum(rate({series}[5m]))"),
        )
    holds("speed-up of k=8, from the counters", rule("speedup:ratio_rate5m"), speedup)
    for k in range(9):
        holds(
            f"expected speed-up at {k}, from the counters of k=8",
            rule("expected_speedup:ratio_rate5m", f'spec_decode_num_spec_tokens="{k}"'),
            lambda then, k=k: expected(rates(then), step(then, PLAIN))[k],
        )
    beyond = prometheus.value(rule("expected_speedup:ratio_rate5m", 'spec_decode_num_spec_tokens="9"'))
    ledger.equal(f"{way}: nothing is expected of positions that were not drafted", beyond, None)
