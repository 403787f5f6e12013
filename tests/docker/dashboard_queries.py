"""The queries of the dashboards and the rules, as a server of theirs is asked them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "docker" / "grafana" / "dashboards"
RULES = ROOT / "docker" / "prometheus"
# What Grafana makes of its variables with "All" chosen, and of its interval at a scrape a second.
_VARIABLES = {
    "$job": ".*",
    "$instance": ".*",
    "$model": ".*",
    "$version": ".*",
    "$__rate_interval": "5s",
}
_METRIC = re.compile(r"[a-z_]*:?sharded_infer_[a-z0-9_]+(?::[a-z0-9_]+)?")
# Of a histogram's series.
_ENDING = re.compile("_(bucket|sum|count)$")


@dataclass(frozen=True, slots=True)
class Asked:
    """PromQL without variables, and the dashboard and panel, or the rule, where it stands."""

    place: str
    expression: str

    @property
    def metrics(self) -> set[str]:
        return set(_METRIC.findall(self.expression))


@cache
def dashboards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(dashboard: Any) -> list[Any]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def substituted(expression: str) -> str:
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def panel_queries(name: str) -> list[Asked]:
    return [
        Asked(f"{name}: {panel['title']}", substituted(target["expr"]))
        for panel in panels(dashboards()[name])
        for target in panel["targets"]
    ]


def rules(file: str) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((RULES / file).read_text())["groups"]:
        yield from group["rules"]


@cache
def recorded() -> dict[str, Asked]:
    found = rules("recording.rules.yml")
    return {rule["record"]: Asked(rule["record"], rule["expr"]) for rule in found}


def alerts_without_thresholds() -> list[Asked]:
    """The alerts' expressions with comparisons that answer 0 or 1 instead of leaving series out."""
    return [
        Asked(
            rule["alert"],
            re.sub(r" (==|>|<) ", r" \1 bool ", re.sub(r" offset \w+", "", rule["expr"])),
        )
        for rule in rules("alerts.rules.yml")
    ]


def families(asked: Asked) -> set[str]:
    """The server's own families that a query needs, through recorded series too."""
    rules_by_name, found = recorded(), set()
    for metric in asked.metrics:
        if metric in rules_by_name:
            found |= families(rules_by_name[metric])
        else:
            found.add(_ENDING.sub("", metric))
    return found
