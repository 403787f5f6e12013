"""Writes the dashboards' JSON from their code; `--check` only says whether it is stale."""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.releases import releases_dashboard
from dashboards.resources import resources_dashboard
from dashboards.service import service_dashboard
from dashboards.shards import shards_dashboard

TARGET = Path(__file__).parent / "grafana" / "dashboards"
DASHBOARDS = {
    "service": service_dashboard,
    "resources": resources_dashboard,
    "releases": releases_dashboard,
    "shards": shards_dashboard,
}


def render() -> dict[Path, str]:
    """Each file as it should be."""
    files = {}
    for name, make in DASHBOARDS.items():
        dashboard = make().build()
        for number, panel in enumerate(dashboard.panels or (), 1):
            panel.id_val = number
        text = json.dumps(dashboard, cls=JSONEncoder, indent=2)
        files[TARGET / f"{name}.json"] = text + "\n"
    return files


if __name__ == "__main__":
    files = render()
    if "--check" in sys.argv:
        there = {path: path.read_text() for path in TARGET.glob("*.json")}
        sys.exit(0 if there == files else f"{TARGET} is stale: run make dashboards")
    for file, text in files.items():
        file.write_text(text)
