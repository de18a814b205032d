"""Part one of check.sh: what engines send through a real Collector comes out of Jaeger and Prometheus as it went in."""

import json
import subprocess
import sys

import panels
import rules
import sweep
import traces
from ledger import Ledger
from stack import Collector, Stack, free_port, get, run_json, wait_for

# Every metric of the crate: its Prometheus name, its type, its unit in OpenTelemetry, and how its help begins.
METRICS = {
    "spec_decode_steps_total": ("counter", "{step}", "Steps closed"),
    "spec_decode_drafts_total": ("counter", "{draft}", "Sequences whose drafts were verified"),
    "spec_decode_draft_tokens_total": ("counter", "{token}", "Draft tokens submitted to verification"),
    "spec_decode_accepted_tokens_total": ("counter", "{token}", "Accepted prefix of each draft"),
    "spec_decode_emitted_tokens_total": ("counter", "{token}", "Tokens emitted by the drafted sequences"),
    "spec_decode_discarded_draft_tokens_total": ("counter", "{token}", "Tokens drafted but never verified"),
    "spec_decode_accepted_tokens_per_position_total": ("counter", "{token}", "Accepted tokens by draft position"),
    "spec_decode_draft_tokens_per_position_total": ("counter", "{token}", "Draft tokens by draft position"),
    "spec_decode_draft_acceptance_rate(_ratio)?": ("gauge", "1", "Accepted / draft tokens"),
    "spec_decode_system_efficiency(_ratio)?": ("gauge", "1", "Emitted / (draft tokens + drafts)"),
    "spec_decode_mean_acceptance_length": ("gauge", "{token}", "1 + accepted / drafts"),
    "spec_decode_num_spec_tokens": ("gauge", "{token}", "Draft tokens per sequence"),
    "spec_decode_step_time_seconds_total": ("counter", "s", "Time from a step's first enter"),
    "spec_decode_draft_time_seconds_total": ("counter", "s", "Time inside the draft spans"),
    "spec_decode_verify_time_seconds_total": ("counter", "s", "Time inside the verify spans"),
    "spec_decode_sequences_total": ("counter", "{sequence}", "Sequences of the steps' batches"),
    "spec_decode_tokens_total": ("counter", "{token}", "Tokens emitted for all sequences"),
    "spec_decode_speedup(_ratio)?": ("gauge", "1", "Measured speed-up over steps without drafts"),
    "spec_decode_best_num_spec_tokens": ("gauge", "{token}", "The k with the largest expected speed-up"),
    "spec_decode_info": ("gauge", "", "1, with what the engine has been described as"),
    "spec_decode_collections_total": ("counter", "{collection}", "Copies of device counters"),
    "spec_decode_collection_time_seconds_total": ("counter", "s", "Time from the start of a copy"),
    "spec_decode_collection_age_seconds": ("gauge", "s", "Age of the copy in flight"),
    "spec_decode_anomalies_total": ("counter", "{anomaly}", "Contradictions and losses"),
}

COUNTERS = ["steps", "drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"]


def main(binaries, quickstart, replica):
    ledger = Ledger()
    with Stack(binaries) as stack:
        missing = [name for name in ("otelcol", "jaeger", "prometheus") if not stack.find(name)]
        if "prometheus" in missing:
            ledger.skip("everything that Prometheus answers", "no Prometheus to be had here")
        else:
            straight(ledger, stack, quickstart)
        if {"otelcol", "prometheus"} & set(missing):
            ledger.skip("the real chain", f"no {' and no '.join(missing)} to be had here")
        else:
            chain(ledger, stack, quickstart, replica)
    ledger.close()


def straight(ledger, stack, quickstart):
    """Without a Collector: Prometheus scrapes the engine itself."""
    ledger.section("the quickstart, scraped by Prometheus itself")
    port = free_port()
    prometheus = stack.prometheus("scrape.yaml", {"otelcol:8889": f"127.0.0.1:{port}"}, "straight")
    command = [quickstart, "--json", "--steps", "100000", "--serve", f"127.0.0.1:{port}"]
    engine = stack.start("quickstart", command)

    def done():
        return [line for line in engine.log.read_text().splitlines() if line.startswith("{")]

    counts = json.loads(wait_for(done, "the quickstart's end", 60)[0])["engine"]
    equal_counts(ledger, {"straight": prometheus}, "engines", counts)
    engine.stop()


def chain(ledger, stack, quickstart, replica):
    jaeger = stack.jaeger() if stack.find("jaeger") else None
    collector = stack_collector(stack, jaeger)
    pushed, scraped = collector.pushed, collector.scraped

    ledger.section("the quickstart, by gRPC and by HTTP")
    for protocol in ("grpc", "http/protobuf"):
        service = f"quickstart-{protocol[:4]}"
        done, _ = run_json([quickstart, "--json", "--steps", "20000"], collector.exporting(protocol, service))
        equal_counts(ledger, {"pushed": pushed, "scraped": scraped}, service, done["engine"])

    ledger.section("a replica whose counters are copied, restarted once")
    lives = [
        run_json(
            [replica, "--seconds", "12", "--accept", "0.9", "--misreport", "500"],
            collector.exporting("grpc", "replica", "one"),
        )[0],
        run_json(
            [replica, "--seconds", "12", "--accept", "0.4", "--misreport", "500", "--latency", "300", "--trace-all"]
            + ["--revision", "r2"],
            collector.exporting("http/protobuf", "replica", "one"),
        )[0],
    ]
    equal_counts(ledger, {"pushed": pushed, "scraped": scraped}, "replica", lives[-1])

    ledger.section("the quickstart's sweep over k")
    own = sweep.run(quickstart, collector.exporting("grpc", sweep.SERVICE))
    for way, prometheus in {"pushed": pushed, "scraped": scraped}.items():
        sweep.numbers(ledger, prometheus, way, own)
    if jaeger:
        ledger.section("Jaeger")
        traces.check(ledger, jaeger, "replica", len(lives))
    else:
        ledger.skip("Jaeger", "it could not be built here")

    ledger.section("straight to Prometheus: types and units")
    units(ledger, stack, quickstart, replica)
    for way, prometheus in {"pushed": pushed, "scraped": scraped}.items():
        ledger.section(f"Prometheus, {way}: names, types, help")
        metrics(ledger, prometheus, way)
        ledger.section(f"Prometheus, {way}: rules")
        rules.check(ledger, prometheus, way, lives)
        sweep.payoff(ledger, prometheus, way)
        ledger.section(f"Prometheus, {way}: every query of the dashboard")
        panels.check(ledger, prometheus, way)


def stack_collector(stack, jaeger):
    """The Collector, the Prometheus that it pushes to, and the one that scrapes it."""
    collector = Collector()
    hosts = {"otelcol:8888": f"127.0.0.1:{collector.own}", "otelcol:8889": f"127.0.0.1:{collector.scrape}"}
    collector.pushed = stack.prometheus("prometheus.yaml", hosts, "pushed")
    collector.scraped = stack.prometheus("scrape.yaml", hosts, "scraped")
    return stack.collector(jaeger.otlp if jaeger else 9, collector.pushed.port, collector)


def equal_counts(ledger, ways, service, counts):
    """The totals in Prometheus are the engine's own, once the last export has arrived."""
    for way, prometheus in ways.items():

        def total(name, extra=""):
            return prometheus.value(f'sum(spec_decode_{name}_total{{job="{service}"{extra}}})')

        try:
            wait_for(lambda: total("steps") == counts["steps"], "the last export", 20)
        except TimeoutError:
            pass
        for name in COUNTERS:
            ledger.equal(f"{way}: {name} of {service}", total(name), counts[name])
        for name, own in (
            ("accepted_tokens_per_position", counts.get("accepted_per_position")),
            ("draft_tokens_per_position", None),
        ):
            own = own or counts[name]
            found = [total(name, f',spec_decode_position="{position}"') for position in range(len(own))]
            ledger.equal(f"{way}: {name} of {service}", found, own)


def metrics(ledger, prometheus, way):
    """Names in both ways; type and help where Prometheus keeps them, which is for what it scrapes."""
    metadata = (get(f"{prometheus.url}/api/v1/metadata") or {}).get("data", {})
    for pattern, (kind, _, text) in METRICS.items():
        name = only_name(ledger, prometheus, way, pattern)
        if name and way == "scraped":
            found = (metadata.get(name) or metadata.get(name.removesuffix("_total")) or [{}])[0]
            holds = found.get("type") == kind and str(found.get("help")).startswith(text)
            ledger.check(
                f"{way}: {name} is a {kind} with its help", holds, f"{found.get('type')}, {found.get('help')!r}"
            )


def only_name(ledger, prometheus, way, pattern):
    named = prometheus.ask(f'count by (__name__) (last_over_time({{__name__=~"{pattern}"}}[10m]))')
    names = [series["metric"]["__name__"] for series in named]
    return names[0] if ledger.check(f"{way}: {pattern} is there, once", len(names) == 1, names) else None


def units(ledger, stack, quickstart, replica):
    """Straight from an engine to a Prometheus that keeps types and units, as labels."""
    prometheus = stack.prometheus("prometheus.yaml", {}, "typed", ["--enable-feature=type-and-unit-labels"])
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"{prometheus.url}/api/v1/otlp",
        "OTEL_TRACES_SAMPLER": "always_off",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_SERVICE_NAME": "typed",
    }
    run_json([replica, "--seconds", "4", "--latency", "300", "--misreport", "100"], environment)
    run_json([quickstart, "--json", "--sweep", "2", "--steps", "200"], environment)
    for pattern, (kind, unit, _) in METRICS.items():
        # Seconds are spelt out; 1, and what is in braces, is no unit to Prometheus.
        expected = (kind, "seconds" if unit == "s" else "")
        series = prometheus.ask(f'count by (__type__, __unit__) (last_over_time({{__name__=~"{pattern}"}}[5m]))')
        found = [(one["metric"].get("__type__"), one["metric"].get("__unit__", "")) for one in series]
        ledger.equal(f"typed: type and unit of {pattern}", found, [expected])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (TimeoutError, subprocess.CalledProcessError) as error:
        sys.exit(f"FAIL  {error}")
