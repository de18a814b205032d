"""The alerts' links lead to sections of the runbook, and each of its sections is linked to."""

import re
import sys

from stack import OBSERVE

RUNBOOK = OBSERVE / "runbook.md"


def slug(heading):
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


text = RUNBOOK.read_text()
sections = {slug(heading) for heading in re.findall(r"^## (.*)$", text, re.MULTILINE)}
alerts = (OBSERVE / "prometheus" / "rules" / "alerts.yaml").read_text()
links = {
    anchor
    for file, anchor in re.findall(r"runbook_url: (\S+)#(\S+)", alerts)
    if (OBSERVE.parent / file).resolve() == RUNBOOK
}
within = set(re.findall(r"\]\(#([\w-]+)\)", text))
broken = (links | within) - sections
unreached = sections - links - within
if broken or unreached or not links:
    sys.exit(f"FAIL  the runbook: links to nowhere {sorted(broken)}, sections without one {sorted(unreached)}")
print(f"ok    the alerts' links, {', '.join(sorted(links))}, and {len(within)} within the runbook lead to its sections")
