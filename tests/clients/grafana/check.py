"""Reads a dashboard with Grafana's own types, and fails if they do not keep a member of it.

A member that Grafana does not know is lost on the way.
"""

import json
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def compare(given, kept, place):
    """Every member that is given must be kept with its value."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if value is None and name not in kept:
                continue
            assert name in kept, f"{place}.{name} is not known to Grafana"
            compare(value, kept[name], f"{place}.{name}")
    elif isinstance(given, list) and isinstance(kept, list):
        assert len(given) == len(kept), f"{place} has another length"
        for index, pair in enumerate(zip(given, kept)):
            compare(*pair, f"{place}[{index}]")
    else:
        assert given == kept, f"{place}: {given!r} became {kept!r}"


register_default_plugins()
with open(sys.argv[1], encoding="utf-8") as file:
    given = json.load(file)
kept = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
compare(given, kept, "dashboard")
ids = [panel["id"] for panel in given["panels"]]
assert len(ids) == len(set(ids)), "two panels have the same id"
cells = set()
for panel in given["panels"]:
    at = panel["gridPos"]
    assert at["x"] + at["w"] <= 24, panel["title"]
    for x in range(at["x"], at["x"] + at["w"]):
        for y in range(at["y"], at["y"] + at["h"]):
            assert (x, y) not in cells, f"{panel['title']} lies upon another panel"
            cells.add((x, y))
