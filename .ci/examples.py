"""Runs the two set-ups that users copy as they are: one against a receiver of OTLP, one is scraped."""

import http.server
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request

otlp, prometheus = sys.argv[1:]


class Receiver(http.server.BaseHTTPRequestHandler):
    bodies = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
endpoint = f"http://127.0.0.1:{server.server_port}"
subprocess.run([otlp], check=True, timeout=60, env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
path, kind, body = Receiver.bodies[-1]
assert (path, kind) == ("/v1/metrics", "application/x-protobuf"), (path, kind)
for name in b"spec_decode.draft_tokens", b"spec_decode.draft_acceptance_rate", b"service.instance.id", b"my-engine":
    assert name in body, f"{name} was not exported"
print(f"otlp: {len(Receiver.bodies)} export(s), the last of {len(body)} bytes")

engine = subprocess.Popen([prometheus, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
try:
    address = re.search(r"http://\S+", engine.stdout.readline()).group()
    # Until the first step has closed all is zero.
    drafts, deadline = 0, time.monotonic() + 30
    while not drafts and time.monotonic() < deadline:
        text = urllib.request.urlopen(address, timeout=10).read().decode()
        drafts = sum(map(float, re.findall(r"^spec_decode_drafts_total\{[^}]*} (\S+)$", text, re.M)))
        time.sleep(0.01)
    samples = dict(re.findall(r"^(spec_decode_\w+)\{[^}]*} (\S+)$", text, re.M))
    drafts, tokens = (float(samples[f"spec_decode_{name}_total"]) for name in ("drafts", "draft_tokens"))
    assert drafts > 0 and tokens == 4 * drafts, samples
    assert float(samples["spec_decode_accepted_tokens_total"]) * 8 == drafts * 19, samples
    print(f"prometheus: scraped at {drafts:.0f} drafts")
finally:
    engine.kill()
    engine.wait()
