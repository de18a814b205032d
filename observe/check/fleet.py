"""A fleet: 16 engine processes, restarted in the middle, one killed, two that name no instance, on one Collector. The
sums in Prometheus are what the processes did, but for what the killed one had not exported."""

import json
import os
import subprocess
import sys
import threading
import time

from ledger import Ledger
from stack import Collector, Stack, get, wait_for

SERVICES = ["fleet-a", "fleet-b", "fleet-c", "fleet-d"]
REPLICAS = 4
# Of two services one replica each names no instance; of one, one is killed.
UNNAMED = {("fleet-c", 1), ("fleet-d", 2)}
KILLED = ("fleet-b", 3)
SECONDS = 8
KILLED_AFTER = 0.7
EXPORT = 0.5
COPY = 0.5
COUNTS = ["steps", "drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"]


class Replica(threading.Thread):
    """One replica's two lives; the second of the one that is killed is short."""

    def __init__(self, program, collector, service, number, seed):
        super().__init__()
        self.program, self.seed = program, seed
        self.key = service, number
        instance = None if self.key in UNNAMED else f"{service}-{number}"
        protocol = "grpc" if number % 2 else "http/protobuf"
        self.environment = {**os.environ, **collector.exporting(protocol, service, instance, int(EXPORT * 1000))}
        self.lives = []
        self.failed = None

    def run(self):
        for life in range(2):
            command = [self.program, "--seconds", str(SECONDS), "--pace", "2000", "--seed", str(self.seed + life)]
            if self.key == KILLED:
                command += ["--say", "10"]
            process = subprocess.Popen(
                command, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            if life == 1 and self.key == KILLED:
                time.sleep(SECONDS * KILLED_AFTER)
                process.kill()
            out, errors = process.communicate(timeout=60)
            if process.returncode > 0 or not out:
                self.failed = errors
                return
            self.lives.append([json.loads(line) for line in out.splitlines()])


def main(binaries, replica):
    ledger = Ledger()
    with Stack(binaries) as stack:
        if stack.find("otelcol") and stack.find("prometheus"):
            fleet(ledger, stack, replica)
        else:
            ledger.skip("the fleet", "no Collector or no Prometheus to be had here")
    ledger.close()


def fleet(ledger, stack, program):
    collector = Collector()
    prometheus = stack.prometheus("prometheus.yaml", {"otelcol:8888": f"127.0.0.1:{collector.own}"})
    stack.collector(9, prometheus.port, collector)
    replicas = [
        Replica(program, collector, service, number, 100 * index + 10 * number)
        for index, service in enumerate(SERVICES)
        for number in range(REPLICAS)
    ]
    for each in replicas:
        each.start()
    for each in replicas:
        each.join()
    ledger.check(
        "16 processes, two lives each",
        not any(each.failed for each in replicas),
        next((each.failed for each in replicas if each.failed), f"{sum(len(each.lives) for each in replicas)} lives"),
    )
    sums(ledger, prometheus, replicas)
    apart(ledger, prometheus)
    size(ledger, prometheus, collector)


def seen(prometheus, selector):
    """What its samples say that each series has counted: from 0 to the first, and on from there."""
    return sum(prometheus.increases(selector)) + sum(first(prometheus, selector))


def first(prometheus, selector):
    return [float(series["values"][0][1]) for series in prometheus.ask(f"{selector}[5m]")]


def sums(ledger, prometheus, fleet):
    ledger.section("what they did, and what Prometheus has seen")
    for service in SERVICES:
        replicas = [each for each in fleet if each.key[0] == service]
        for name in COUNTS:
            did = sum(life[-1][name] for each in replicas for life in each.lives)
            selector = f'spec_decode_{name}_total{{job="{service}"}}'
            if service != KILLED[0]:
                wait_for_last(prometheus, selector, did)
                ledger.equal(f"{service}: {name}", seen(prometheus, selector), float(did))
            elif name != "steps":
                killed(ledger, prometheus, replicas, name, selector)


def wait_for_last(prometheus, selector, did):
    try:
        wait_for(lambda: seen(prometheus, selector) >= did, "the last export", 10)
    except TimeoutError:
        pass


def killed(ledger, prometheus, replicas, name, selector):
    """The one that was killed has said what it did up to ten milliseconds before."""
    victim = next(each for each in replicas if each.key == KILLED)
    did = sum(life[-1][name] for each in replicas for life in each.lives)
    lost = did - seen(prometheus, selector)
    # A copy, an export, and as much again for a machine that is busy.
    bound = 2 * (EXPORT + COPY) * victim.lives[1][-1][name] / (SECONDS * KILLED_AFTER)
    ledger.check(
        f"{KILLED[0]}: {name}, but for what the killed one had not exported",
        0 < lost <= bound,
        f"{did - lost:.0f} of {did}, {lost:.0f} lost, {bound:.0f} at most",
    )


def apart(ledger, prometheus):
    ledger.section("the replicas, told apart")
    last = 'count by ({by}) (last_over_time(spec_decode_drafts_total{{job="{service}"}}[5m]))'
    for service in SERVICES:
        unnamed = sum(key[0] == service for key in UNNAMED)
        found = prometheus.ask(last.format(by="instance", service=service))
        names = sorted(series["metric"].get("instance", "") for series in found)
        # One without a name makes a new one in each life.
        ledger.check(f"{service}: instances", len(names) == REPLICAS + unnamed and "" not in names, ", ".join(names))
        ids = prometheus.ask(last.format(by="service_instance_id", service=service))
        ledger.equal(
            f"{service}: service_instance_id says the same",
            sorted(series["metric"].get("service_instance_id", "") for series in ids),
            names,
        )
    pods = prometheus.ask(last.format(by="k8s_namespace_name, k8s_pod_name, k8s_node_name", service="fleet-a"))
    found = sorted((tuple(series["metric"].values()) for series in pods), key=sorted)
    ledger.equal(
        "fleet-a: namespace, node and pod are labels",
        [set(pod) for pod in found],
        [{"serving", "node-7", f"fleet-a-{number}"} for number in range(REPLICAS)],
    )


def size(ledger, prometheus, collector):
    ledger.section("what an engine costs")

    def number(names):
        return prometheus.value(f'count(last_over_time({{__name__=~"{names}",instance="fleet-a-0"}}[5m]))')

    series = number("spec_decode_.*")
    ledger.check("series of an engine with 4 positions", 0 < series < 60, f"{series:.0f}")
    rules = number("(replica:|vllm:).*")
    ledger.check("series that the rules add for it", 0 < rules < 60, f"{rules:.0f}")
    memory = get(f"http://127.0.0.1:{collector.own}/metrics")
    used = [float(line.split()[-1]) for line in memory.splitlines() if line.startswith("otelcol_process_memory_rss")]
    ledger.check(
        "memory of the Collector", used and used[0] < 1 << 30, f"{used[0] / (1 << 20):.0f} MiB" if used else "unknown"
    )


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (TimeoutError, subprocess.SubprocessError) as error:
        sys.exit(f"FAIL  {error}")
