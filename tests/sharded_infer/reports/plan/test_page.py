import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
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

HOSTILE = '</style><script>alert("1")</script>" onfocus=\'x\' & <i style="width:1%">'
VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Elements of a page; refuses end tags that match no start tag."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def text(self, tag: str) -> str:
        return "".join(text for path, text in self.texts if tag in path)

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


def uses(names: list[str], pooling: float = 3.0) -> dict[str, TableUse]:
    return {
        name: TableUse(
            StoredTable(name, 50 + 997 * i % 90_000, 8 << i % 4, list(RowFormat)[i % 2]),
            (FeatureStatistics(pooling_factor=pooling + i % 7),),
        )
        for i, name in enumerate(names)
    }


def planned(load: CostModel) -> tuple[PlanResult, CostModel]:
    return make_plan(load), load


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


def test_page_is_well_formed_and_starts_as_html(mixed: tuple[PlanResult, CostModel]) -> None:
    text = render_plan_page(*mixed)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>\n") and not page.open
    identifiers = [a["id"] for _, a, _ in page.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers))


def test_page_needs_nothing_from_elsewhere(mixed: tuple[PlanResult, CostModel]) -> None:
    text = render_plan_page(*mixed)
    page = Page(text)
    assert not [a for _, a, _ in page.elements if a.keys() & {"src", "href", "srcset", "action"}]
    for marker in ("http:", "https:", "//cdn", "url(", "@import", "@font-face", "fetch("):
        assert marker not in text
    policies = [str(a["content"]) for _, a, _ in page.elements if "http-equiv" in a]
    assert len(policies) == 1 and policies[0].startswith("default-src 'none'")


def test_every_rank_is_drawn_in_both_drawings(mixed: tuple[PlanResult, CostModel]) -> None:
    bars = Page(render_plan_page(*mixed)).bars()
    assert bars.keys() == {"seconds", "bytes"}
    assert [len(drawing) for drawing in bars.values()] == [3, 3]


def test_parts_say_their_table_kind_range_bytes_time_and_share(
    mixed: tuple[PlanResult, CostModel],
) -> None:
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
    result, load = planned(CostModel(uses([f"t{i}" for i in range(count)]), parse_topology("l4:4")))
    page = Page(render_plan_page(result, load))
    for drawing, loads in (("seconds", result.figures.seconds), ("bytes", result.figures.bytes)):
        full = page.full_scale(drawing)
        for bar, total in zip(page.bars()[drawing], loads, strict=True):
            drawn = sum(width for width, _ in bar) / 100 * full
            # Widths have four decimals of a percent.
            assert drawn == pytest.approx(total, abs=1e-6 * full * len(bar))


def test_thin_parts_are_counted_in_the_last_segment() -> None:
    result, load = planned(CostModel(uses([f"t{i}" for i in range(900)]), parse_topology("l4:2")))
    everywhere = len(result.plan.replicated)
    for bar_number, bar in enumerate(Page(render_plan_page(result, load)).bars()["seconds"]):
        labels = [label for _, label in bar if not label.startswith("fixed cost")]
        more = re.match(r"and ([0-9,]+) more\n", labels[-1])
        assert more and len(labels) < 80
        held = sum(shard.rank == bar_number for shard in result.plan.shards) + everywhere
        assert len(labels) - 1 + int(more[1].replace(",", "")) == held


def test_hostile_names_stay_text() -> None:
    names = [HOSTILE, "bell\a and \u202e turned", "x" * 5000, "a: b"]
    topology = Topology(HOSTILE, (Device(), Device()))
    load = CostModel(uses(names), topology)
    shards = tuple(
        Shard(n, i % 2, 0, load.uses[n].table.rows, 0, load.uses[n].table.dim)
        for i, n in enumerate(names)
    )
    plan = Plan(topology, shards)
    decisions = (f"{HOSTILE}: cut", "a: b: cut", HOSTILE, "y <b>" * 9000)
    result = PlanResult(plan, figures_of(plan, load), 1e-6, decisions)
    text = render_plan_page(result, load)
    page = Page(text)
    assert text.count("<script") == 1 and "onfocus='x'" not in text
    assert "\a" not in text and "\u202e" not in text and "x" * 200 not in text
    assert page.text("title") == f"Plan for {HOSTILE}"
    assert any(label.startswith(HOSTILE) for bar in page.bars()["seconds"] for _, label in bar)
    # The table's name is told from the decision, even where it holds the separator.
    assert '<td class="name">a: b</td><td class="text">cut</td>' in text
    assert len(text) < 100_000
    text.encode()


def test_devices_say_what_binds_them() -> None:
    tables = {
        name: TableUse(
            StoredTable(name, rows, 32, RowFormat.INT8), (FeatureStatistics(pooling_factor=ids),)
        )
        for name, rows, ids in (("hot", 10, 90.0), ("big", 1000, 1.0), ("calm", 10, 1.0))
    }
    devices = tuple(Device(memory_bytes=limit) for limit in (10_000, 36_500, None))
    topology = Topology("three", devices)
    shards = tuple(Shard(n, i, 0, t.table.rows, 0, 32) for i, (n, t) in enumerate(tables.items()))
    load = CostModel(tables, topology)
    plan = Plan(topology, shards)
    page = render_plan_page(PlanResult(plan, figures_of(plan, load), 1e-6, ()), load)
    rows = re.findall(r'<tr><th scope="row" class="n".*?</tr>', page)
    bound = [re.sub(r"<[^>]+>", "", row.rpartition("<td")[2].partition(">")[2]) for row in rows]
    assert bound == ["time", "memory", "neither"]
    assert "no limit" in rows[2] and "None were needed" in page


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
    rows = re.findall(r'<tr><th scope="row" class="n" data-v="[0-9]">.*?</tr>', page)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    assert [row[1] for row in cells[:4]] == ["front", "asked", "asked", "not asked"]
    assert [row[4:6] for row in cells[:4]] == [
        ["", ""], ["10.0 kB", "192 kB"], ["5.00 kB", "64.0 kB"], ["0 B", "0 B"],
    ]  # fmt: skip
    # The bound is one of the request, and so is no line among the ranks.
    assert not re.findall(r'class="mark bound"', page)


def test_a_plan_of_several_hosts_without_a_front_says_what_a_front_would_exchange() -> None:
    topology = Topology("two", (Device(host=0), Device(host=1)))
    load = CostModel({"t": TableUse(StoredTable("t", 100, 32, RowFormat.INT8))}, topology, 100)
    plan = Plan(topology, (Shard("t", 1, 0, 100, 0, 32),))
    result = PlanResult(plan, figures_of(plan, load), 1e-6, ())
    assert [(one.role, one.received_bytes) for one in host_reports(result, load)] == [
        ("", 0), ("", 12_800),
    ]  # fmt: skip
    assert "The topology names no front" in render_plan_page(result, load)


def test_lines_stand_at_the_bound_and_at_the_limits(mixed: tuple[PlanResult, CostModel]) -> None:
    page = Page(render_plan_page(*mixed))
    lines = [str(a["style"]) for tag, a, _ in page.elements if tag == "s" and a["class"] == "line"]
    bound = 100 * 5e-6 / page.full_scale("seconds")
    assert lines == [f"left:{bound:.4f}%"] * 3 + ["left:100.0000%"] * 3


def test_tables_are_sorted_by_buttons_and_bars_have_one_tab_stop_each(
    mixed: tuple[PlanResult, CostModel],
) -> None:
    page = Page(render_plan_page(*mixed))
    heads = [path for tag, _, path in page.elements if tag == "button"]
    assert len(heads) >= 15 and all(path[-1] == "th" for path in heads)
    stops = [a["tabindex"] for tag, a, _ in page.elements if tag == "i" and "tabindex" in a]
    assert stops.count("0") == 6 and set(stops) == {"0", "-1"}


@pytest.mark.parametrize(("ranks", "tables"), [(1, 0), (2, 1), (3, 2)])
def test_small_plans_have_a_page(ranks: int, tables: int) -> None:
    topology = parse_topology(f"cpu:{ranks}")
    load = CostModel(uses([f"t{i}" for i in range(tables)]), topology)
    shards = tuple(
        Shard(n, i, 0, u.table.rows, 0, u.table.dim) for i, (n, u) in enumerate(load.uses.items())
    )
    plan = Plan(topology, shards)
    page = Page(render_plan_page(PlanResult(plan, figures_of(plan, load), 0.0, ()), load))
    assert [len(bars) for bars in page.bars().values()] == [ranks, ranks]


def test_tables_that_cost_nothing_have_a_page() -> None:
    table = StoredTable("idle", 9, 4, RowFormat.INT8)
    topology = Topology("free", (Device(launch_seconds=0),))
    load = CostModel({"idle": TableUse(table, ())}, topology)
    plan = Plan(topology, (Shard("idle", 0, 0, 9, 0, 4),))
    text = render_plan_page(PlanResult(plan, figures_of(plan, load), 0.0, ()), load)
    assert "0.0% of the time of rank 0" in text and "Hottest" not in text


@pytest.mark.parametrize(("ranks", "tables"), [(8, 5000), (128, 5000), (128, 50_000)])
def test_page_stays_below_3_mb(ranks: int, tables: int) -> None:
    load = CostModel(
        uses([f"a_table_with_quite_a_long_name_{i:05}" for i in range(tables)]),
        parse_topology(f"h100:{ranks}"),
    )
    names = list(load.uses)
    replicated, own = names[: tables // 3], names[tables // 3 :]
    shards = tuple(
        Shard(n, i % ranks, 0, load.uses[n].table.rows, 0, load.uses[n].table.dim)
        for i, n in enumerate(own)
    )
    plan = Plan(load.topology, shards, tuple(replicated))
    decisions = (f"replicated: {', '.join(replicated)}", *(f"{n}: cut in two" for n in own))
    result = PlanResult(plan, figures_of(plan, load), 1e-6, decisions)
    text = render_plan_page(result, load)
    assert len(text.encode()) < 3_000_000
    assert [len(bars) for bars in Page(text).bars().values()] == [ranks, ranks]
    assert f"of {len(decisions):,}." in text


def test_chromium_draws_the_page_without_complaint(
    mixed: tuple[PlanResult, CostModel], tmp_path: Path
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not on PATH")
    page, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    page.write_text(render_plan_page(*mixed))
    done = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            "--window-size=1280,900",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # The console speaks of script errors and of what the content security policy refused.
    assert "CONSOLE" not in done.stderr
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG") and struct.unpack(">II", head[16:24]) == (1280, 900)
