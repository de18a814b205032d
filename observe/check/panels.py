"""Every query of the dashboard, on a live Prometheus."""

import json

from stack import OBSERVE

DASHBOARD = OBSERVE / "grafana" / "dashboards" / "spec-decode.json"

# What an operator would have chosen.
VARIABLES = {"$service": "(replica|sweep)", "$model": ".*", "$engine": ".*", "$window": "5m", "$min_drafts": "20"}


def queries():
    """Title of the panel, reference and expression of each target."""

    def of(panels):
        for panel in panels:
            for target in panel.get("targets", []):
                yield panel["title"], target["refId"], target["expr"]
            yield from of(panel.get("panels", []))

    return list(of(json.loads(DASHBOARD.read_text())["panels"]))


def chosen(expression, **others):
    for name, value in {**VARIABLES, **others}.items():
        expression = expression.replace(name, value)
    if "$" in expression:
        raise ValueError(f"an unknown variable in {expression!r}")
    return expression


def check(ledger, prometheus, way):
    marks(ledger, prometheus, way)
    for title, reference, expression in queries():
        try:
            result = prometheus.ask(chosen(expression))
        except ValueError as error:
            ledger.check(f"{way}: {title} {reference}", False, error)
            continue
        values = [float(series["value"][1]) for series in result]
        numbers = all(value == value and abs(value) != float("inf") for value in values)
        ledger.check(
            f"{way}: {title} {reference}",
            values and numbers,
            f"{len(values)} series, {values[0]:.4g}" if values else "no data",
        )
    quiet(ledger, prometheus, way)


def marks(ledger, prometheus, way):
    """The annotation is on every panel, and marks when the replica came back with another draft model."""
    (mark,) = json.loads(DASHBOARD.read_text())["annotations"]["list"]
    ledger.check(f"{way}: {mark['name']} is on every panel", mark["enable"] and "filter" not in mark, "no filter")
    times = f"min_over_time(timestamp({chosen(mark['expr'], **{'$service': 'replica'})})[10m:1s])"
    begins = {
        series["metric"].get("spec_decode_draft_model_revision"): float(series["value"][1])
        for series in prometheus.ask(times)
    }
    after = begins["r2"] - begins["r1"] if begins.keys() == {"r1", "r2"} else None
    ledger.check(f"{way}: r1 is marked, and r2 as long after it as a life", after and 10 < after < 60, f"{after} s")


def quiet(ledger, prometheus, way):
    """Where next to nothing is drafted, a ratio is absent; it is not 0."""
    for title, reference, expression in queries():
        if "$min_drafts" in expression:
            few = chosen(expression, **{"$min_drafts": "1000000000"})
            idle = chosen(expression).replace("[5m]", "[5m] offset 1d")
            found = prometheus.ask(few) + (prometheus.ask(idle) if "$window" in expression else [])
            ledger.equal(f"{way}: {title} {reference} without enough drafts, and without any, is absent", found, [])
