"""What Jaeger knows of a replica."""

from stack import get, wait_for

RATES = ["spec_decode.draft_acceptance_rate", "spec_decode.system_efficiency", "spec_decode.mean_acceptance_length"]
COUNTS = ["spec_decode.drafts", "spec_decode.draft_tokens", "spec_decode.accepted_tokens", "spec_decode.emitted_tokens"]


def check(ledger, jaeger, service, lives):
    found = wait_for(lambda: jaeger.traces(service, "spec_decode.collect"), "collect spans in Jaeger", 20)
    spans = {span["spanID"]: span for trace in found for span in trace["spans"]}
    collects = [span for span in spans.values() if span["operationName"] == "spec_decode.collect"]
    steps = {
        span["spanID"]
        for trace in jaeger.traces(service, "spec_decode_step")
        for span in trace["spans"]
        if span["operationName"] == "spec_decode_step"
    }
    ledger.check("collect spans", len(collects) >= 10, f"{len(collects)}, beside {len(steps)} step spans")

    operations = get(f"{jaeger.url}/api/services/{service}/operations")["data"]
    ledger.equal(
        "nothing else is traced, the exporter's own calls for one",
        sorted(operations),
        ["spec_decode.collect", "spec_decode_step"],
    )

    children, links, times = 0, [], []
    for collect in collects:
        references = collect["references"]
        parents = {reference["spanID"] for reference in references if reference["refType"] == "CHILD_OF"}
        children += any(spans.get(span, {}).get("operationName") == "spec_decode_step" for span in parents)
        linked = [reference for reference in references if reference["refType"] == "FOLLOWS_FROM"]
        links += [(link["traceID"], link["spanID"]) for link in linked if link["spanID"] not in parents]
        times.append(collect["duration"] / 1000)
    ledger.equal("each is the child of a step in its trace", children, len(collects))
    ledger.check(
        "each is linked to the step in which it ended, unless a closing flush has waited for it",
        len(collects) - lives <= len(links) <= len(collects),
        f"{len(links)} of {len(collects)}, of {lives} processes",
    )
    found = sum(jaeger.operation(trace, span) == "spec_decode_step" for trace, span in links)
    ledger.equal("each link leads to a step", found, len(links))
    ledger.check(
        "each lasts as long as a copy takes, and a step or two",
        1 <= min(times) and max(times) < 1000,
        f"{min(times):.1f} to {max(times):.1f} ms",
    )

    tags = [{tag["key"]: tag["value"] for tag in collect["tags"]} for collect in collects]
    identity = {"spec_decode.collection.outcome": "resolved", "spec_decode.engine": "0", "spec_decode.model": "toy-8b"}
    ledger.check(
        "each has its outcome, engine and model", all(identity.items() <= tag.items() for tag in tags), identity
    )
    ledger.check(
        "each has its counts and its rates",
        all(name in tag for tag in tags for name in COUNTS + RATES),
        ", ".join(f"{name.removeprefix('spec_decode.')} {tags[0].get(name)}" for name in COUNTS + RATES),
    )
    right = sum(abs(tag[RATES[0]] - tag[COUNTS[2]] / tag[COUNTS[1]]) < 1e-12 for tag in tags if RATES[0] in tag)
    ledger.equal("each rate is its counts divided", right, len(tags))
