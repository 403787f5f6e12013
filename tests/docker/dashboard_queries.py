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
_HISTOGRAM_SERIES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Asked:
    """PromQL without variables, and the dashboard and panel, or the rule, where it stands."""

    place: str
    expression: str

    @property
    def metrics(self) -> set[str]:
        """The names of all metrics in it, recorded ones too."""
        return set(_METRIC.findall(self.expression))


@cache
def dashboards() -> dict[str, Any]:
    """Each dashboard's document, by the name of its file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(dashboard: Any) -> list[Any]:
    """The panels of a dashboard, without its rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def substituted(expression: str) -> str:
    """An expression as Grafana sends it."""
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression, expression
    return expression


def panel_queries(name: str) -> list[Asked]:
    """All queries of a dashboard's panels."""
    return [
        Asked(f"{name}: {panel['title']}", substituted(target["expr"]))
        for panel in panels(dashboards()[name])
        for target in panel["targets"]
    ]


def rules(file: str) -> Iterator[dict[str, Any]]:
    """The rules of a file, of all groups."""
    for group in yaml.safe_load((RULES / file).read_text())["groups"]:
        yield from group["rules"]


@cache
def recorded() -> dict[str, Asked]:
    """The expression of each recording rule, by what it records."""
    return {
        rule["record"]: Asked(rule["record"], rule["expr"]) for rule in rules("recording.rules.yml")
    }


def alerts_without_thresholds() -> list[Asked]:
    """The alerts' expressions with comparisons that answer 0 or 1 instead of leaving series out.

    What is left needs every part to have series whose labels match. Earlier values are those of now
    where there are none.
    """
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
            found.add(family_of(metric))
    return found


def family_of(series: str) -> str:
    """The name of a histogram's series without its ending; others are as they are."""
    for ending in _HISTOGRAM_SERIES:
        series = series.removesuffix(ending)
    return series
