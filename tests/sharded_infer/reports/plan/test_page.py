import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from kernels.row_format import RowFormat
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.planning.plan_result import PlanResult, figures_of
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology import Device, FrontCosts, Topology
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.reports.plan.figures import host_reports
from sharded_infer.reports.plan.page import render_plan_page
from sharded_infer.specs.feature_statistics import FeatureStatistics
from tests.sharded_infer.reports.parsed_page import ParsedPage, check_drawn

HOSTILE = '</style><script>alert("1")</script>" onfocus=\'x\' & <i style="width:1%">'


class Page(ParsedPage):
    def bars(self) -> dict[str, list[list[tuple[float, str]]]]:
        """By drawing: the bars, each of the widths and labels of its segments."""
        found: dict[str, list[list[tuple[float, str]]]] = {}
        for tag, attributes, _ in self.elements:
            if tag == "figure":
                bars = found[str(attributes["id"])] = []
            elif attributes.get("class") == "bar":
                bars.append([])
            elif tag == "i" and "aria-label" in attributes:
                width = re.fullmatch(r"width:([0-9.]+)%", str(attributes["style"]))
                assert width, attributes
                bars[-1].append((float(width[1]), str(attributes["aria-label"])))
        return found

    def full_scale(self, drawing: str) -> float:
        (full,) = (a["data-full"] for _, a, _ in self.elements if a.get("id") == drawing)
        return float(str(full))


def in_turns(load: CostModel, names: Sequence[str], ranks: int) -> tuple[Shard, ...]:
    tables = [load.uses[name].table for name in names]
    return tuple(Shard(t.name, i % ranks, 0, t.rows, 0, t.dim) for i, t in enumerate(tables))


def uses(names: list[str], pooling: float = 3.0) -> dict[str, TableUse]:
    return {
        name: TableUse(
            StoredTable(name, 50 + 997 * i % 90_000, 8 << i % 4, list(RowFormat)[i % 2]),
            (FeatureStatistics(pooling_factor=pooling + i % 7),),
        )
        for i, name in enumerate(names)
    }


@pytest.fixture(scope="module")
def mixed() -> tuple[PlanResult, CostModel]:
    """Every kind of part, a rank without any, and limits."""
    tables = {
        name: TableUse(StoredTable(name, 1000, 32, RowFormat.INT8))
        for name in ("whole", "by_columns", "by_rows", "everywhere", "both")
    }
    topology = parse_topology("h100:3x1MB")
    shards = (
        Shard("whole", 0, 0, 1000, 0, 32),
        Shard("by_columns", 0, 0, 1000, 0, 16),
        Shard("by_columns", 1, 0, 1000, 16, 32),
        Shard("by_rows", 1, 0, 400, 0, 32),
        Shard("by_rows", 0, 400, 1000, 0, 32),
        Shard("both", 0, 0, 1000, 0, 16),
        Shard("both", 1, 0, 500, 16, 32),
        Shard("both", 0, 500, 1000, 16, 32),
    )
    load = CostModel(tables, topology)
    plan = Plan(topology, shards, ("everywhere",))
    decisions = ("1 small tables are replicated: everywhere", "by_rows: fits no rank whole")
    return PlanResult(plan, figures_of(plan, load), 5e-6, decisions), load


def test_page_is_self_contained_and_draws_each_rank_twice(
    mixed: tuple[PlanResult, CostModel],
) -> None:
    text = render_plan_page(*mixed)
    page = Page(text)
    assert page.check_self_contained(text).startswith("default-src 'none'")
    bars = page.bars()
    assert bars.keys() == {"seconds", "bytes"}
    assert [len(drawing) for drawing in bars.values()] == [3, 3]


def test_parts_say_table_kind_range_bytes_and_time(mixed: tuple[PlanResult, CostModel]) -> None:
    bars = Page(render_plan_page(*mixed)).bars()
    labels = "\n\n".join(label for bar in bars["seconds"] for _, label in bar)
    assert "whole\nwhole table, int8\nall 1,000 rows; all 32 columns\n36,000 bytes" in labels
    assert "by_columns\ncolumn shard, int8\nall 1,000 rows; columns 0 to 16 of 32" in labels
    assert "by_rows\nrow shard, int8\nrows 0 to 400 of 1,000; all 32 columns" in labels
    assert "both\nrow and column shard, int8\nrows 500 to 1,000 of 1,000" in labels
    assert "everywhere\nreplicated table" in labels
    assert re.search(r"[0-9.]+ µs, [0-9.]+% of the time of rank 0", labels)
    assert "number 1 of the hottest tables" in labels


@pytest.mark.parametrize("count", [2, 300])
def test_widths_sum_to_the_loads(count: int) -> None:
    load = CostModel(uses([f"t{i}" for i in range(count)]), parse_topology("l4:4"))
    result = make_plan(load)
    page = Page(render_plan_page(result, load))
    for drawing, loads in (("seconds", result.figures.seconds), ("bytes", result.figures.bytes)):
        full = page.full_scale(drawing)
        for bar, total in zip(page.bars()[drawing], loads, strict=True):
            drawn = sum(width for width, _ in bar) / 100 * full
            # Widths have four decimals of a percent.
            assert drawn == pytest.approx(total, abs=1e-6 * full * len(bar))


def test_hostile_names_stay_text() -> None:
    names = [HOSTILE, "bell\a and \u202e turned", "x" * 5000, "a: b"]
    topology = Topology(HOSTILE, (Device(), Device()))
    load = CostModel(uses(names), topology)
    plan = Plan(topology, in_turns(load, names, 2))
    decisions = (f"{HOSTILE}: cut", "a: b: cut", HOSTILE, "y <b>" * 9000)
    text = render_plan_page(PlanResult(plan, figures_of(plan, load), 1e-6, decisions), load)
    page = Page(text)
    assert text.count("<script") == 1 and "onfocus='x'" not in text
    assert "\a" not in text and "\u202e" not in text and "x" * 200 not in text
    assert page.text("title") == f"Plan for {HOSTILE}"
    assert any(label.startswith(HOSTILE) for bar in page.bars()["seconds"] for _, label in bar)
    # The table's name is told from the decision, even where it holds the separator.
    assert '<td class="name">a: b</td><td class="text">cut</td>' in text
    assert len(text) < 100_000
    text.encode()


def test_hosts_say_their_bytes_of_a_request() -> None:
    tables = {
        name: TableUse(StoredTable(name, rows, 32, RowFormat.INT8))
        for name, rows in (("small", 100), ("wide", 70_000), ("whole", 70_000))
    }
    devices = tuple(Device(host=host) for host in (0, 1, 2, 3))
    front = FrontCosts(host=0, call_seconds=1e-5, send_bandwidth=1e9, receive_bandwidth=1e9)
    topology = Topology("four", devices, front=front)
    load = CostModel(tables, topology, batch=1000)
    shards = (
        Shard("small", 0, 0, 100, 0, 32),
        Shard("whole", 1, 0, 70_000, 0, 32),
        Shard("wide", 1, 0, 70_000, 0, 16),
        Shard("wide", 2, 0, 70_000, 16, 32),
    )
    plan = Plan(topology, shards, unused=(3,))
    result = PlanResult(plan, figures_of(plan, load), 1e-6, ())
    # 1000 ids of 4 bytes and as many lengths, for each part; 48 and 16 columns of fp32.
    seconds = result.figures.request_seconds
    assert result.figures.front_seconds == pytest.approx(2e-5 + 15e-6 + 256e-6)
    found = [
        (one.host, one.role, one.tables, one.sent_bytes, one.received_bytes)
        for one in host_reports(result, load)
    ]
    assert found == [
        (0, "front", 1, 0, 0), (1, "asked", 2, 10_000, 192_000), (2, "asked", 1, 5000, 64_000),
        (3, "not asked", 0, 0, 0),
    ]  # fmt: skip
    shares = [one.share for one in host_reports(result, load)]
    assert shares[1] == pytest.approx(result.figures.seconds[1] / seconds) and shares[3] == 0
    page = render_plan_page(result, load)
    assert (
        "the front asks 2 hosts: it sends 15.0 kB and receives 256 kB, which takes 291 µs" in page
    )
    assert "It keeps 1 table, which saves 130 kB." in page
    # The bound is one of the request, and so is no line among the ranks.
    assert not re.findall(r'class="mark bound"', page)


@pytest.mark.parametrize(("ranks", "tables"), [(8, 5000), (128, 50_000)])
def test_page_stays_below_3_mb(ranks: int, tables: int) -> None:
    names = [f"a_table_with_quite_a_long_name_{i:05}" for i in range(tables)]
    load = CostModel(uses(names), parse_topology(f"h100:{ranks}"))
    replicated, own = names[: tables // 3], names[tables // 3 :]
    plan = Plan(load.topology, in_turns(load, own, ranks), tuple(replicated))
    decisions = (f"replicated: {', '.join(replicated)}", *(f"{n}: cut in two" for n in own))
    text = render_plan_page(PlanResult(plan, figures_of(plan, load), 1e-6, decisions), load)
    assert len(text.encode()) < 3_000_000
    assert [len(bars) for bars in Page(text).bars().values()] == [ranks, ranks]
    assert f"of {len(decisions):,}." in text


def test_chromium_draws_without_complaint(
    mixed: tuple[PlanResult, CostModel], tmp_path: Path
) -> None:
    check_drawn(render_plan_page(*mixed), tmp_path)
