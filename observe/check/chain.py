"""Part one of check.sh: engines through a real Collector into Jaeger and Prometheus, and what comes out is what went in."""

import subprocess
import sys
import time

import panels
import rules
import traces
from ledger import Ledger
from stack import Stack, run_json, wait_for

# Every metric of the crate: its Prometheus name, type, unit as exposed, and the beginning of its help.
METRICS = {
    "spec_decode_steps_total": ("counter", "Steps closed"),
    "spec_decode_drafts_total": ("counter", "Sequences whose drafts were verified"),
    "spec_decode_draft_tokens_total": ("counter", "Draft tokens submitted to verification"),
    "spec_decode_accepted_tokens_total": ("counter", "Accepted prefix of each draft"),
    "spec_decode_emitted_tokens_total": ("counter", "Tokens emitted by the drafted sequences"),
    "spec_decode_discarded_draft_tokens_total": ("counter", "Tokens drafted but never verified"),
    "spec_decode_accepted_tokens_per_position_total": ("counter", "Accepted tokens by draft position"),
    "spec_decode_draft_tokens_per_position_total": ("counter", "Draft tokens by draft position"),
    "spec_decode_draft_acceptance_rate(_ratio)?": ("gauge", "Accepted / draft tokens"),
    "spec_decode_system_efficiency(_ratio)?": ("gauge", "Emitted / (draft tokens + drafts)"),
    "spec_decode_mean_acceptance_length": ("gauge", "1 + accepted / drafts"),
    "spec_decode_num_spec_tokens": ("gauge", "Draft tokens per sequence"),
    "spec_decode_collections_total": ("counter", "Copies of device counters"),
    "spec_decode_collection_time_seconds_total": ("counter", "Time from the start of a copy"),
    "spec_decode_collection_age_seconds": ("gauge", "Age of the copy in flight"),
    "spec_decode_anomalies_total": ("counter", "Contradictions and losses"),
}

COUNTERS = ["steps", "drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"]


def main(binaries, quickstart, replica):
    ledger = Ledger()
    with Stack(binaries) as stack:
        missing = [name for name in ("otelcol", "jaeger", "prometheus") if not stack.find(name)]
        if "otelcol" in missing or "prometheus" in missing:
            ledger.skip("the real chain", f"{', '.join(missing)} not to be had here")
            ledger.close()
        chain(ledger, stack, quickstart, replica)
    ledger.close()


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
        run_json([replica, "--seconds", "12", "--accept", "0.9", "--misreport", "500"],
                 collector.exporting("grpc", "replica", "one"))[0],
        run_json([replica, "--seconds", "12", "--accept", "0.4", "--misreport", "500", "--latency", "300",
                  "--trace-all"],
                 collector.exporting("http/protobuf", "replica", "one"))[0],
    ]
    equal_counts(ledger, {"pushed": pushed, "scraped": scraped}, "replica", lives[-1])
    if jaeger:
        ledger.section("Jaeger")
        traces.check(ledger, jaeger, "replica")
    else:
        ledger.skip("Jaeger", "it could not be built here")

    for way, prometheus in {"pushed": pushed, "scraped": scraped}.items():
        ledger.section(f"Prometheus, {way}: names, types, help")
        metrics(ledger, prometheus, way)
        ledger.section(f"Prometheus, {way}: rules")
        rules.check(ledger, prometheus, way, lives)
        ledger.section(f"Prometheus, {way}: every query of the dashboard")
        panels.check(ledger, prometheus, way)


def stack_collector(stack, jaeger):
    """The Collector, the Prometheus that it pushes to, and the one that scrapes it."""
    from stack import Collector
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
        for name, own in (("accepted_tokens_per_position", counts.get("accepted_per_position")),
                          ("draft_tokens_per_position", None)):
            own = own or counts[name]
            found = [total(name, f',spec_decode_position="{position}"') for position in range(len(own))]
            ledger.equal(f"{way}: {name} of {service}", found, own)


def metrics(ledger, prometheus, way):
    metadata = scrape_metadata(prometheus)
    for pattern, (kind, text) in METRICS.items():
        named = prometheus.ask(f'count by (__name__) (last_over_time({{__name__=~"{pattern}"}}[10m]))')
        names = [series["metric"]["__name__"] for series in named]
        if not ledger.check(f"{way}: {pattern} is there, once", len(names) == 1, names):
            continue
        if metadata:
            found = metadata.get(names[0]) or metadata.get(names[0].removesuffix("_total")) or {}
            about = f"{found.get('type')}, unit {found.get('unit') or 'none'}, {found.get('help')!r}"
            holds = found.get("type") == kind and str(found.get("help")).startswith(text)
            ledger.check(f"{way}: {names[0]} is a {kind} with its help", holds, about)


def scrape_metadata(prometheus):
    from stack import get
    found = (get(f"{prometheus.url}/api/v1/metadata") or {}).get("data", {})
    return {name: entries[0] for name, entries in found.items() if name.startswith("spec_decode")}


if __name__ == "__main__":
    started = time.monotonic()
    try:
        main(*sys.argv[1:])
    except (TimeoutError, subprocess.CalledProcessError) as error:
        sys.exit(f"FAIL  {error}")
