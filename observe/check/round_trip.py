"""Reads a dashboard with Grafana's schema, writes it, and requires that nothing of it was lost."""

import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(before, after, path="dashboard"):
    """The paths of what is in `before` and not in `after`."""
    if isinstance(before, dict):
        after = after if isinstance(after, dict) else {}
        for key, value in before.items():
            yield from lost(value, after[key], f"{path}.{key}") if key in after else [f"{path}.{key}"]
    elif isinstance(before, list):
        after = after if isinstance(after, list) else []
        for index, value in enumerate(before):
            yield from lost(value, after[index], f"{path}[{index}]") if index < len(after) else [f"{path}[{index}]"]
    elif before != after:
        yield f"{path} ({before!r} became {after!r})"


def size(value):
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return 1 + sum(size(child) for child in children)


register_default_plugins()
with open(sys.argv[1]) as file:
    source = json.load(file)
written = json.loads(json.dumps(Dashboard.from_json(source), cls=JSONEncoder))
# A null says the same as an absent key.
missing = [path for path in lost(source, written) if not path.endswith(".value") or "thresholds" not in path]
if missing:
    sys.exit("FAIL  the dashboard's round trip through the schema lost " + ", ".join(missing))
print(f"ok    the dashboard's round trip through the schema: {size(source)} fields and values, none lost")
