"""Part two of check.sh: the Collector fails in every way, the decode goes on, and nothing is lost once it is back."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

from faults import Door
from ledger import Ledger
from stack import Collector, Stack, free_port, wait_for

SECONDS = 6
# Until then the Collector fails.
BACK = 4
# A thread that sleeps a millisecond a step is at the mercy of the machine: what is looked for is a wait for the
# network, which is a second long here.
PACE = 0.8
MEMORY_KIB = 8192


def main(binaries, quickstart, replica):
    ledger = Ledger()
    with Stack(binaries) as stack:
        if not (stack.find("otelcol") and stack.find("prometheus")):
            ledger.skip("the failing path", "no Collector or no Prometheus to be had here")
        else:
            failing(ledger, stack, quickstart, replica)
    ledger.close()


def failing(ledger, stack, quickstart, replica):
    collector, steady = Collector(), Collector()
    prometheus = stack.prometheus("prometheus.yaml", {"otelcol:8888": f"127.0.0.1:{collector.own}"})
    for each in (collector, steady):
        stack.collector(9, prometheus.port, each)

    def beside(runs, what_happens):
        """Each run beside one whose Collector is well, on a machine that is then as busy for both."""
        well = Run(replica, steady, f"well-{runs[0].service}", "grpc", steady.grpc)
        what_happens()
        well.wait()
        ledger.check(f"{well.service}: steps", well.steps > 0, f"{well.steps} in {SECONDS} s")
        for run in runs:
            judge(ledger, prometheus, run.wait(), well)

    ledger.section("the Collector fails, and comes back")
    doors, runs = [], []
    for mode, protocol in (
        ("reset", "grpc"),
        ("hang", "grpc"),
        ("hang", "http/protobuf"),
        ("slow", "http/protobuf"),
        ("error", "http/protobuf"),
        ("error", "grpc"),
    ):
        doors.append(Door(collector.grpc if protocol == "grpc" else collector.http))
        doors[-1].set(mode)
        runs.append(Run(replica, collector, f"{mode}-{protocol[:4]}", protocol, doors[-1].port))

    def all_open():
        time.sleep(BACK)
        for door in doors:
            door.set("pass")

    beside(runs, all_open)
    for door in doors:
        door.close()

    ledger.section("the Collector is down from the start, or dies on the way")
    collector.program.stop("kill")

    def comes_up():
        time.sleep(BACK - 1)
        stack.collector(9, prometheus.port, collector)

    beside([Run(replica, collector, "down", "grpc", collector.grpc)], comes_up)

    def restarts():
        time.sleep(2)
        collector.program.stop("kill")
        time.sleep(1)
        stack.collector(9, prometheus.port, collector)

    beside([Run(replica, collector, "dies", "http/protobuf", collector.http)], restarts)

    ledger.section("an endpoint that never works: the user is told, once")
    told(ledger, quickstart, collector)


class Run:
    """A replica on its way: its pace, its memory, its own counts."""

    def __init__(self, replica, collector, service, protocol, port):
        self.service = service
        environment = {
            **os.environ,
            **collector.exporting(protocol, service, interval_ms=500),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1000",
        }
        self.process = subprocess.Popen(
            [replica, "--seconds", str(SECONDS), "--trace-all"],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.memory = []
        self.watch = threading.Thread(target=self._watch, daemon=True)
        self.watch.start()

    def _watch(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status")
        while self.process.poll() is None:
            try:
                lines = status.read_text().splitlines()
            except OSError:
                return
            self.memory += [int(line.split()[1]) for line in lines if line.startswith("VmRSS")]
            time.sleep(0.2)

    def wait(self):
        out, _ = self.process.communicate(timeout=120)
        self.counts = json.loads(out.splitlines()[-1])
        self.steps = self.counts["steps"]
        self.watch.join()
        return self


def judge(ledger, prometheus, run, well):
    service = run.service
    ledger.check(
        f"{service}: the pace, beside one whose Collector is well",
        run.steps >= PACE * well.steps,
        f"{run.steps / well.steps:.3f}",
    )

    def total(name):
        return prometheus.value(f'sum(spec_decode_{name}_total{{job="{service}"}})')

    try:
        wait_for(lambda: total("steps") == run.steps, "the last export", 15)
    except TimeoutError:
        pass
    for name in ("steps", "drafts", "draft_tokens", "accepted_tokens", "emitted_tokens"):
        ledger.equal(f"{service}: {name}, once it is back", total(name), run.counts[name])
    early, late = max(run.memory[:8]), max(run.memory)
    ledger.check(
        f"{service}: memory is bounded",
        late - early < MEMORY_KIB + max(well.memory) - max(well.memory[:8]),
        f"{early} KiB after 1.6 s, {late} KiB at most",
    )


def told(ledger, quickstart, collector):
    door = Door(collector.http)
    door.set("hang")
    broken = {
        "nobody listens": ("http/protobuf", f"http://127.0.0.1:{free_port()}"),
        "nobody listens, gRPC": ("grpc", f"http://127.0.0.1:{free_port()}"),
        "it hangs": ("http/protobuf", f"http://127.0.0.1:{door.port}"),
        "it does not resolve": ("http/protobuf", "http://collector.invalid:4318"),
        "it does not resolve, gRPC": ("grpc", "http://collector.invalid:4317"),
        "TLS is refused": ("http/protobuf", f"https://127.0.0.1:{collector.http}"),
        "TLS is refused, gRPC": ("grpc", f"https://127.0.0.1:{collector.grpc}"),
    }

    def run(protocol, endpoint):
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_METRIC_EXPORT_INTERVAL": "300",
        }
        return subprocess.run(
            [quickstart, "--json", "--steps", "40000"], env=environment, text=True, timeout=120, capture_output=True
        )

    with concurrent.futures.ThreadPoolExecutor(len(broken)) as pool:
        done = {what: pool.submit(run, *how) for what, how in broken.items()}
    for what, future in done.items():
        result = future.result()
        lines = [line for line in result.stderr.splitlines() if "export" in line]
        ledger.check(f"{what}: said in one line", len(lines) == 1, lines[0][:160] if lines else result.stderr[:200])
        if what.startswith("TLS is refused") and result.returncode:
            # An exporter built without TLS refuses the endpoint at once, which is as good.
            continue
        counts = json.loads(result.stdout.splitlines()[-1]) if result.stdout else {}
        ledger.equal(
            f"{what}: the decode is done, and counted",
            counts.get("metrics", {}).get("drafts"),
            counts.get("engine", {}).get("drafts", "a count"),
        )
    door.close()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (TimeoutError, subprocess.SubprocessError) as error:
        sys.exit(f"FAIL  {error}")
