"""The quickstart's sweep over k: its own numbers are in Prometheus, and the rules make the same of them as it does."""

from rules import NEAR
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
    points(ledger, prometheus, way, own["exported"])


def points(ledger, prometheus, way, exported):
    """Every point of the program's last export, by name and attributes."""

    def plain(name):
        return name.replace(".", "_")

    expected = {}
    for point in exported:
        labels = frozenset((plain(name), value) for name, value in point["attributes"].items())
        expected.setdefault(point["name"], {})[labels] = point["value"]
    for name, own in sorted(expected.items()):
        selector = f'{{__name__=~"{plain(name)}(_seconds)?(_total|_ratio)?",job="{SERVICE}"}}'
        found = {}
        for series in prometheus.ask(f"last_over_time({selector}[5m])"):
            ours = [pair for pair in series["metric"].items() if pair[0].startswith(("spec_decode_", "error_type"))]
            found[frozenset(ours)] = float(series["value"][1])
        differ = [(found.get(at), own[at], *at) for at in own if found.get(at) != own[at]]
        ledger.check(f"{way}: each point of {name}", not differ, differ or f"{len(own)}, equal")


def payoff(ledger, prometheus, way):
    """The rules, on live data: the speed-up and what is expected by k, from the increases of the counters."""

    def added(name, labels):
        return sum(prometheus.increases(f'spec_decode_{name}_total{{job="{SERVICE}",{LARGEST},{labels}}}'))

    def recorded(name, labels=""):
        return prometheus.value(f'engine:spec_decode_{name}:ratio_rate5m{{job="{SERVICE}",{LARGEST},{labels}}}')

    drafts, drafted = added("drafts", ""), added(STEPS, DRAFTED)
    plain = added(STEP_TIME, PLAIN) / added(STEPS, PLAIN)
    step, draft = added(STEP_TIME, DRAFTED) / drafted, added("draft_time_seconds", "") / drafted
    in_use = added("draft_tokens", "") / drafts
    measured = added("emitted_tokens", "") / drafts * plain / step
    ledger.equal(f"{way}: speed-up of k=8, from the counters", recorded("speedup"), measured, rel_tol=NEAR)

    tokens = 1
    for position in range(8):
        at = f'spec_decode_position="{position}"'
        tokens += added("accepted_tokens_per_position", at) / added("draft_tokens_per_position", at)
        k = position + 1
        expected = tokens * plain / (step - draft + draft / in_use * k)
        found = recorded("expected_speedup", f'spec_decode_num_spec_tokens="{k}"')
        ledger.equal(f"{way}: expected speed-up at {k}, from the counters of k=8", found, expected, rel_tol=NEAR)
    beyond = recorded("expected_speedup", 'spec_decode_num_spec_tokens="9"')
    ledger.equal(f"{way}: nothing is expected of positions that were not drafted", beyond, None)
