import xml.etree.ElementTree as ElementTree
from time import process_time

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.plan.families import (
    HOT_SHARE,
    PlanCase,
    many_tables,
    mlperf_dlrm_v2,
    quality_cases,
    small_tables,
    speed_cases,
    three_hot_tables,
    wide_range,
)
from benchmarks.plan.plan import (
    Outcome,
    Search,
    TorchRecRun,
    measure_case,
    run_torchrec,
    scaling_chart,
)
from serving.bench.line_chart import Series
from serving.bench.parts.installed_torchrec import torchrec_is_installed
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.topology_file import parse_topology
from tests.benchmarks.conftest import Measure


def test_the_families_are_the_same_every_time() -> None:
    assert quality_cases() == quality_cases()
    assert many_tables(5_000, 16) == many_tables(5_000, 16)


@pytest.mark.parametrize(("tables", "highest"), [(100, 1e8), (500, 1e8), (2_000, 1.6e7)])
def test_the_wide_range_is_log_uniform_and_fits(tables: int, highest: float) -> None:
    case = wide_range(tables)
    used = [use.table for use in case.uses.values()]
    assert len(used) == tables
    assert [device.memory_bytes for device in case.topology.devices] == [80 * 10**9] * 8
    assert {table.dim for table in used} == set(range(16, 257, 16))
    rows = np.array([table.rows for table in used])
    assert rows.min() >= 1e3 and rows.max() <= highest
    # Half of them lie below the geometric middle.
    assert np.mean(rows < (1e3 * highest) ** 0.5) == pytest.approx(0.5, abs=0.1)
    assert sum(table.stored_bytes for table in used) < 0.95 * 8 * 80e9


def test_three_hot_tables_hold_most_of_the_load() -> None:
    case = three_hot_tables()
    load = case.load()
    seconds = [
        load.seconds(Shard(t.name, 0, 0, t.rows, 0, t.dim))
        for t in (use.table for use in case.uses.values())
    ]
    assert len(seconds) == 300
    assert sum(sorted(seconds)[-3:]) / sum(seconds) == pytest.approx(HOT_SHARE, abs=0.001)


def test_plans_are_close_to_the_bound_and_use_memory_evenly() -> None:
    # Others have no room for choices.
    cases = [case for case in quality_cases() if case.family != "mlperf-dlrm-v2"]
    assert len(cases) == 5
    for case in (*cases, *speed_cases()):
        found = measure_case(case, {})
        assert found["gap"] <= 0.02 and found["memory_imbalance"] <= 1.10, found


def test_many_tables_are_planned_quickly() -> None:
    for case, seconds in zip((small_tables(), *speed_cases()), (0.1, 1.0, 10.0), strict=True):
        # However busy the machine is; slow ones take three times as long.
        began = process_time()
        make_plan(case.load())
        assert process_time() - began < 3 * seconds


def test_the_command_prints_a_table_and_writes_the_figures(measure: Measure) -> None:
    printed, (figures,) = measure("plan", "--family", "small-tables", "--torchrec-seconds", 0)
    assert "small-tables" in printed and "TorchRec" in printed
    assert set(figures) >= {"family", "seconds", "gap", "memory_imbalance"}
    assert (figures["tables"], figures["devices"]) == (500, 8)
    assert figures["torchrec_seconds"] is None and figures["torchrec_time_ratio"] is None


def test_the_command_names_the_families_when_one_is_unknown() -> None:
    done = CliRunner().invoke(app, ["plan", "--family", "large"])
    assert done.exit_code == 1
    assert "small-tables" in str(done.exception)


def test_the_figures_without_a_name_are_torchrec_s_better_plan() -> None:
    case = mlperf_dlrm_v2(2)
    names = [use.table for use in case.uses.values()]
    best = make_plan(case.load()).plan
    alone = Plan(case.topology, tuple(Shard(t.name, 0, 0, t.rows, 0, t.dim) for t in names))
    quick = TorchRecRun(Outcome.PLANNED, 0.1, alone)
    full = TorchRecRun(Outcome.PLANNED, 9.0, best)
    found = measure_case(case, {Search.QUICK: quick, Search.FULL: full})
    assert found["torchrec_search"] == "full" and found["torchrec_seconds"] == 9.0
    assert found["torchrec_quick_time_ratio"] > 1 == found["torchrec_time_ratio"]


def test_the_chart_is_an_image_with_every_point() -> None:
    points = ((100.0, 0.05), (1_000.0, 0.2), (50_000.0, 8.0))
    theirs = ((100.0, 0.3), (1_000.0, 4.0))
    text = scaling_chart("Time & tables", [Series("ours", points), Series("theirs", theirs)])
    root = ElementTree.fromstring(text)  # noqa: S314 - our own text
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 5
    assert all(
        0 <= float(c.attrib["cx"]) <= 720 and 0 <= float(c.attrib["cy"]) <= 440 for c in circles
    )
    for words in ("ours", "theirs", "N log N", "seconds to plan", "10,000", "Time &amp; tables"):
        assert words in text


@pytest.mark.skipif(torchrec_is_installed(), reason="TorchRec is installed")
def test_without_torchrec_it_does_not_run() -> None:
    assert run_torchrec(small_tables(), Search.QUICK, 1.0).outcome is Outcome.NOT_INSTALLED


@pytest.mark.skipif(not torchrec_is_installed(), reason="TorchRec is not installed")
class TestTorchRec:
    def test_its_plan_is_one_of_ours(self) -> None:
        run = run_torchrec(mlperf_dlrm_v2(2), Search.FULL, 60.0)
        assert run.outcome is Outcome.PLANNED
        assert run.plan is not None and {shard.rank for shard in run.plan.shards} == {0, 1}

    def test_it_is_stopped_at_the_limit(self) -> None:
        assert run_torchrec(small_tables(), Search.FULL, 0.5).outcome is Outcome.TIMED_OUT

    def test_tables_that_do_not_fit_are_refused(self) -> None:
        case = wide_range(100)
        small = PlanCase(case.family, case.uses, parse_topology("h100:2x1GB"))
        assert run_torchrec(small, Search.QUICK, 60.0).outcome is Outcome.REFUSED
