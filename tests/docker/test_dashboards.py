"""The committed dashboards: generated from their code, complete, and right about percentiles."""

import re
import sys
from typing import Any

import pytest

from tests.docker.dashboard_queries import ROOT, dashboards, panels
from tests.docker.dockerfile import output_of

NAMES = ("releases", "resources", "service", "shards")
_COMMAND = re.compile(r"`sharded-infer ((?:[a-z]+ ?)+)")
_OPTION = re.compile(r"(?<!-)(--[a-z][a-z-]+)")


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest) -> Any:
    return dashboards()[request.param]


def test_the_committed_dashboards_are_what_their_code_says() -> None:
    output_of(sys.executable, "docker/generate_dashboards.py", "--check", cwd=ROOT)
    assert tuple(dashboards()) == NAMES


def test_every_panel_says_what_it_means_and_in_what_unit(dashboard: Any) -> None:
    for panel in panels(dashboard):
        assert len(panel["description"].split()) >= 12, panel["title"]
        heatmap = panel["type"] == "heatmap"
        unit = panel["options"]["yAxis"] if heatmap else panel["fieldConfig"]["defaults"]
        assert unit["unit"], panel["title"]


def test_every_query_asks_the_chosen_data_source_and_jobs(dashboard: Any) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
            selectors = re.findall(r"sharded_infer_[a-z_]+(\{[^}]*\})?", target["expr"])
            chosen = [s for s in selectors if 'job=~"$job",instance=~"$instance"' in s]
            assert selectors == chosen, (panel["title"], target["expr"])


def test_percentiles_add_buckets_up_before_they_are_read(dashboard: Any) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            if "histogram_quantile" in target["expr"]:
                inner = r"histogram_quantile\([0-9.]+, sum by \([a-z, ]*\ble\) \(rate\("
                assert re.search(inner, target["expr"]), target["expr"]


def test_advice_names_commands_and_options_that_exist(dashboard: Any) -> None:
    for panel in panels(dashboard):
        assert _unknown_words(panel["description"]) == [], panel["title"]


def test_the_runbook_names_commands_and_options_that_exist() -> None:
    assert _unknown_words((ROOT / "docs" / "runbook.md").read_text()) == []


def _unknown_words(text: str) -> list[str]:
    reference = (ROOT / "docs" / "cli.md").read_text()
    commands = [words.strip() for words in _COMMAND.findall(text)]
    unknown = [name for name in commands if f"`sharded-infer {name}`" not in reference]
    return unknown + [name for name in _OPTION.findall(text) if f"`{name}" not in reference]
