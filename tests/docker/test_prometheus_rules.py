"""Prometheus' configuration and rules: valid, unit-tested, and explained in the runbook."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docker.dashboard_queries import ROOT, rules
from tests.docker.dockerfile import output_of
from tests.docker.prometheus_server import CONFIGURATION, NEEDS_PROMETHEUS

RUNBOOK = ROOT / "docs" / "runbook.md"
UNIT_TESTS = sorted((CONFIGURATION / "tests").glob("*.yml"))
ALERTS = {rule["alert"]: rule for rule in rules("alerts.rules.yml")}
# Factor, long window, short window, severity: Site Reliability Workbook, chapter 5.
BURN_RATES = (
    (14.4, "1h", "5m", "page"),
    (6, "6h", "30m", "page"),
    (3, "1d", "2h", "ticket"),
    (1, "3d", "6h", "ticket"),
)
BUDGETS = {"availability": "0.001", "latency": "0.01"}


def _promtool(*words: str) -> None:
    output_of("promtool", *words, cwd=CONFIGURATION)


@NEEDS_PROMETHEUS
def test_the_configuration_and_the_rules_are_valid() -> None:
    _promtool("check", "config", "prometheus.yml")
    _promtool("check", "rules", "recording.rules.yml", "alerts.rules.yml")


@NEEDS_PROMETHEUS
@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda path: str(path.stem))
def test_alerts_fire_and_are_silent_when_they_should(file: Path) -> None:
    _promtool("test", "rules", f"tests/{file.name}")


def test_every_alert_is_tested_firing_and_silent() -> None:
    fired: dict[str, set[bool]] = {name: set() for name in ALERTS}
    for file in UNIT_TESTS:
        for group in yaml.safe_load(file.read_text())["tests"]:
            for case in group["alert_rule_test"]:
                fired[case["alertname"]].add(bool(case["exp_alerts"]))
    assert [name for name, cases in fired.items() if cases != {True, False}] == []


def test_burn_rates_are_the_workbooks_with_a_minimum_of_traffic() -> None:
    for objective, budget in BUDGETS.items():
        alerts = [r for r in ALERTS.values() if r["labels"].get("objective") == objective]
        assert len(alerts) == len(BURN_RATES)
        for rule, (factor, long, short, severity) in zip(alerts, BURN_RATES, strict=True):
            long_part, short_part, traffic = rule["expr"].strip().split("\nand ")
            assert re.fullmatch(rf"\S+:ratio_rate{long} > {factor} \* {budget}", long_part)
            assert re.fullmatch(rf"\S+:ratio_rate{short} > {factor} \* {budget}", short_part)
            assert traffic == f"job_model:sharded_infer_requests:rate{long} > 0.1"
            assert rule["labels"]["severity"] == severity


def test_every_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    for name, rule in ALERTS.items():
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert "{{" in rule["annotations"]["summary"] + rule["annotations"]["description"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_the_runbook_has_a_paragraph_for_every_alert_and_none_besides() -> None:
    sections = re.split(r"^### (ShardedInfer\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    headings, bodies = sections[1::2], sections[2::2]
    assert headings == list(ALERTS)
    assert [h for h, body in zip(headings, bodies, strict=True) if len(body.split()) < 30] == []
