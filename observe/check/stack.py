"""Starts the real programs on loopback with the files of observe/, each on free ports and in a fresh directory."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

OBSERVE = pathlib.Path(__file__).resolve().parent.parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what, seconds=30.0):
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)


def get(url, **parameters):
    """The body of an answer of status 200, decoded if it is JSON; None if there is no such answer."""
    if parameters:
        url += "?" + urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = answer.read().decode()
    except (OSError, http.client.HTTPException):
        return None
    with contextlib.suppress(ValueError):
        return json.loads(body)
    return body


class Program:
    """A child process with a log."""

    def __init__(self, name, command, directory, environment=None):
        self.name = name
        self.log = directory / f"{name}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **(environment or {})},
            )

    def stop(self, signal="terminate"):
        if self.process.poll() is None:
            getattr(self.process, signal)()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Stack:
    """A context: what was started is stopped at its end, whatever happens."""

    def __init__(self, binaries):
        self.binaries = pathlib.Path(binaries)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="observe-"))
        self.programs = []

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for program in reversed(self.programs):
            program.stop()
        if kind is None:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            print(f"the logs are in {self.directory}")

    def find(self, name):
        """A program that was built, else the distribution's."""
        built = self.binaries / name
        return built if built.exists() else shutil.which(name)

    def start(self, name, command, environment=None):
        program = Program(name, command, self.directory, environment)
        self.programs.append(program)
        return program

    def jaeger(self):
        jaeger = Jaeger(free_port(), free_port())
        self.start(
            "jaeger",
            [self.find("jaeger"), "--config", OBSERVE / "jaeger.yaml"],
            {
                "JAEGER_HTTP": f"127.0.0.1:{jaeger.http}",
                "JAEGER_GRPC": f"127.0.0.1:{free_port()}",
                "JAEGER_OTLP": f"127.0.0.1:{jaeger.otlp}",
            },
        )
        wait_for(lambda: get(f"{jaeger.url}/api/services") is not None, "Jaeger")
        return jaeger

    def prometheus(self, config, hosts, name="prometheus", flags=()):
        """With hosts and intervals of this machine in place of those of the file, and nothing else changed."""
        home = self.directory / name
        shutil.copytree(OBSERVE / "prometheus", home)
        text = (home / config).read_text()
        for host, address in hosts.items():
            text = text.replace(host, address)
        (home / config).write_text(text.replace("_interval: 15s", "_interval: 1s"))
        prometheus = Prometheus(free_port())
        command = [
            self.find("prometheus"),
            f"--config.file={home / config}",
            f"--storage.tsdb.path={home / 'data'}",
            f"--web.listen-address=127.0.0.1:{prometheus.port}",
        ]
        if "otlp:" in text:
            command.append("--web.enable-otlp-receiver")
        self.start(name, [*command, *flags])
        wait_for(lambda: get(f"{prometheus.url}/-/ready"), name)
        return prometheus

    def collector(self, jaeger_otlp, prometheus_port, ports=None):
        collector = ports or Collector()
        collector.program = self.start(
            "otelcol",
            [self.find("otelcol"), "--config", OBSERVE / "collector.yaml"],
            {
                "OTLP_GRPC": f"127.0.0.1:{collector.grpc}",
                "OTLP_HTTP": f"127.0.0.1:{collector.http}",
                "JAEGER_OTLP": f"127.0.0.1:{jaeger_otlp}",
                "PROMETHEUS": f"127.0.0.1:{prometheus_port}",
                "SCRAPE": f"127.0.0.1:{collector.scrape}",
                "HEALTH": f"127.0.0.1:{collector.health}",
                "SELF_HOST": "127.0.0.1",
                "SELF_PORT": str(collector.own),
            },
        )
        wait_for(lambda: get(f"http://127.0.0.1:{collector.health}/") is not None, "the Collector")
        return collector


class Collector:
    def __init__(self):
        self.grpc, self.http, self.scrape, self.health, self.own = (free_port() for _ in range(5))
        self.program = None

    def exporting(self, protocol, service, instance=None, interval_ms=1000):
        """The environment of an engine that exports to it."""
        port = self.grpc if protocol == "grpc" else self.http
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_METRIC_EXPORT_INTERVAL": str(interval_ms),
            "OTEL_SERVICE_NAME": service,
        }
        if instance:
            environment["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(
                [
                    f"service.instance.id={instance}",
                    f"k8s.pod.name={instance}",
                    "k8s.namespace.name=serving",
                    "k8s.node.name=node-7",
                ]
            )
        return environment


class Jaeger:
    def __init__(self, http, otlp):
        self.http, self.otlp = http, otlp
        self.url = f"http://127.0.0.1:{http}"

    def traces(self, service, operation):
        found = get(f"{self.url}/api/traces", service=service, operation=operation, limit=1000, lookback="1h")
        return (found or {}).get("data") or []

    def operation(self, trace, span):
        """The name of one span."""
        found = (get(f"{self.url}/api/traces/{trace}") or {}).get("data") or []
        names = [each["operationName"] for trace in found for each in trace["spans"] if each["spanID"] == span]
        return names[0] if names else None


class Prometheus:
    def __init__(self, port, time=None):
        self.port, self.time = port, time
        self.url = f"http://127.0.0.1:{port}"

    def at(self, time):
        """The same, asked about then instead of now."""
        return Prometheus(self.port, time)

    def ask(self, query):
        """The result of a query; a ValueError with the server's words if it has none."""
        then = {"time": self.time} if self.time else {}
        url = f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": query, **then})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{query!r}: {error.read().decode()}") from error

    def value(self, query):
        """The one value of a query; None if it has none or several."""
        result = self.ask(query)
        return float(result[0]["value"][1]) if len(result) == 1 else None

    def increases(self, selector, window="5m"):
        """What each series added within the window, by its samples: restarts are seen as such."""
        increases = []
        for series in self.ask(f"{selector}[{window}]"):
            values = [float(value) for _, value in series["values"]]
            steps = zip(values, values[1:])
            increases.append(sum(now - before if now >= before else now for before, now in steps))
        return increases


def run_json(command, environment):
    """The last line of a program's stdout, which is JSON, and its stderr."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
