"""Takes the picture of README.md: Prometheus's own page, with queries of the dashboard, on a small fleet.

    python3 observe/check/picture.py BINARIES REPLICA PROMETHEUS PICTURE

PROMETHEUS is one that was built with its pages, as the distribution's is; one built from its Go module has none.
"""

import os
import pathlib
import subprocess
import sys
import time
import urllib.parse

import panels
from stack import Collector, Stack

SHOWN = ["Acceptance rate", "Acceptance by position"]
# The last one's draft model no longer fits, from the middle on.
ACCEPT = [("0.85", "0.85"), ("0.7", "0.7"), ("0.75", "0.3")]
LIFE = 75


def main(binaries, replica, prometheus_program, picture):
    with Stack(binaries) as stack:
        find = stack.find
        stack.find = lambda name: prometheus_program if name == "prometheus" else find(name)
        collector = Collector()
        hosts = {"otelcol:8888": f"127.0.0.1:{collector.own}", "otelcol:8889": f"127.0.0.1:{collector.scrape}"}
        prometheus = stack.prometheus("scrape.yaml", hosts)
        stack.collector(9, prometheus.port, collector)
        for life in range(2):
            fleet = [
                subprocess.Popen(
                    [
                        replica,
                        "--seconds",
                        str(LIFE),
                        "--pace",
                        "4000",
                        "--accept",
                        accept[life],
                        "--model",
                        f"model-{number}",
                    ],
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **collector.exporting("grpc", "chat", f"chat-{number}")},
                )
                for number, accept in enumerate(ACCEPT)
            ]
            for process in fleet:
                process.wait()
        shoot(prometheus, stack.directory, pathlib.Path(picture).resolve())


def shoot(prometheus, directory, picture):
    expressions = {title: expression for title, _, expression in reversed(panels.queries())}
    parameters = []
    for number, title in enumerate(SHOWN):
        expression = panels.chosen(expressions[title], **{"$service": "chat", "$window": "20s", "$min_drafts": "20"})
        expression = " ".join(expression.split())
        parameters += [(f"g{number}.expr", expression), (f"g{number}.tab", "0"), (f"g{number}.range_input", "3m")]
    url = f"{prometheus.url}/graph?{urllib.parse.urlencode(parameters)}"
    time.sleep(2)
    subprocess.run(
        [
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={directory / 'chromium'}",
            "--window-size=1000,1600",
            "--virtual-time-budget=8000",
            f"--screenshot={picture}",
            url,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=120,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
