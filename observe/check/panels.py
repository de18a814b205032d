"""Every query of the dashboard, on a live Prometheus."""

import json

from stack import OBSERVE

DASHBOARD = OBSERVE / "grafana" / "dashboards" / "spec-decode.json"

# What an operator would have chosen.
VARIABLES = {"$service": "replica", "$model": ".*", "$engine": ".*", "$window": "5m", "$min_drafts": "20"}


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


def quiet(ledger, prometheus, way):
    """Where next to nothing is drafted, a ratio is absent; it is not 0."""
    ratios = ["Acceptance rate", "System efficiency", "Mean acceptance length", "Mean k"]
    for title, reference, expression in queries():
        if title in ratios:
            few = chosen(expression).replace(">= 20", ">= 1000000000")
            idle = chosen(expression).replace("[5m]", "[5m] offset 1d")
            found = prometheus.ask(few) + prometheus.ask(idle)
            ledger.equal(f"{way}: {title} {reference} without enough drafts, and without any, is absent", found, [])
