from dataclasses import replace

import pytest

from kernels.row_format import RowFormat
from sharded_infer.planning.cost_model import CostModel, plan_key
from sharded_infer.planning.front_traffic import traffic_by_host
from sharded_infer.planning.id_map_memory import map_bytes_of
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.planning.plan_result import figures_of
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.table_use import TableUse, table_uses
from sharded_infer.planning.topology import Device, FrontCosts, Topology
from sharded_infer.reports.plan.figures import rank_reports
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.id_map_spec import HashedRows, IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

ROWS, DIM = 100_000, 60
ALL = (0, ROWS)
TABLE = StoredTable("item", ROWS, DIM, RowFormat.INT8)  # 64 bytes a row
MAP = 16 * ROWS + 16384
USE = TableUse(TABLE, (FeatureStatistics(),), MAP)
PARTED = replace(USE, in_parts=True)


def topology(*hosts: int, memory: int | None = None, front: int | None = None) -> Topology:
    devices = tuple(Device(host=host, memory_bytes=memory) for host in hosts)
    return Topology("front", devices, front=FrontCosts(host=front))


def load_of(where: Topology, use: TableUse = USE) -> CostModel:
    return CostModel({"item": use}, where)


def plan_of(where: Topology, *rectangles: tuple[int, int, int, int, int]) -> Plan:
    return Plan(where, tuple(Shard("item", *rectangle) for rectangle in rectangles))


def test_an_id_map_has_an_id_a_row() -> None:
    mapped = TableSpec("item", ROWS, DIM, id_map=IdMapSpec("zero"))
    spec = ModelSpec("m", (mapped, TableSpec("plain", 5, 4)))
    assert map_bytes_of(ROWS) == MAP
    assert {use.table.name: use.map_bytes for use in table_uses(spec)} == {"item": MAP, "plain": 0}


def part(rows: int) -> int:
    return 16 * rows + 16384


@pytest.mark.parametrize(
    ("in_parts", "rectangles", "maps"),
    [
        (False, [(1, 0, ROWS, 0, DIM)], [0, MAP, 0, 0]),
        # Two ranks of one host share an id map; another host has its own.
        (False, [(1, *ALL, 0, 20), (2, *ALL, 20, 40), (3, *ALL, 40, DIM)], [0, MAP, 0, MAP]),
        # The front maps ids of what is cut by rows, and hosts those of their parts.
        (False, [(1, 0, 9, 0, DIM), (3, 9, ROWS, 0, DIM)], [MAP, 0, 0, 0]),
        (True, [(1, 0, 9, 0, DIM), (3, 9, ROWS, 0, DIM)], [0, part(9), 0, part(ROWS - 9)]),
        (False, [(0, 0, ROWS, 0, DIM)], [MAP, 0, 0, 0]),
        # Columns of one part share its ids, and ranks of one host.
        (
            True,
            [(1, 0, 9, 0, 20), (2, 0, 9, 20, DIM), (3, 9, ROWS, 0, 20), (2, 9, ROWS, 20, DIM)],
            [0, part(9) + part(ROWS - 9), 0, part(ROWS - 9)],
        ),
        # A front with rows of the table maps all ids, which hosts do not know.
        (True, [(0, 0, 9, 0, DIM), (3, 9, ROWS, 0, DIM)], [MAP, 0, 0, part(ROWS - 9)]),
    ],
)
def test_those_who_map_ids_hold_the_id_map_or_its_part(
    in_parts: bool, rectangles: list[tuple[int, int, int, int, int]], maps: list[int]
) -> None:
    where = topology(0, 1, 1, 2, front=0)
    plan = plan_of(where, *rectangles)
    figures = figures_of(plan, load_of(where, PARTED if in_parts else USE))
    assert list(figures.map_bytes) == maps
    rows = plan.bytes_by_rank({"item": TABLE})
    assert list(figures.bytes) == [sum(pair) for pair in zip(rows, maps, strict=True)]


def test_without_a_front_nothing_changes() -> None:
    where = Topology("cpu:2", (Device(), Device(host=1)))
    without = replace(USE, map_bytes=0)
    plans = [make_plan(load_of(where, use)) for use in (USE, without)]
    assert plans[0] == plans[1]
    where = topology(0, 1, front=0)
    assert plan_key(load_of(where)) != plan_key(load_of(where, without))


def test_raw_ids_have_eight_bytes() -> None:
    where = topology(0, 1, 2, front=0)
    load = load_of(where)
    whole = plan_of(where, (1, 0, ROWS, 0, DIM))
    cut = plan_of(where, (1, 0, ROWS // 2, 0, DIM), (2, ROWS // 2, ROWS, 0, DIM))
    ids = load.batch * USE.pooling_factor
    assert traffic_by_host(whole, load)[1].sent == ids * 8 + load.batch
    # The front maps ids of what is cut by rows, but for those of parts.
    assert traffic_by_host(cut, load)[1].sent == ids / 2 * 4 + load.batch
    assert traffic_by_host(cut, load_of(where, PARTED))[1].sent == ids / 2 * 8 + load.batch


def test_mapping_takes_a_cache_line_an_id() -> None:
    where = topology(0, 1, front=0)
    shard = Shard("item", 1, 0, ROWS, 0, DIM)
    load, without = load_of(where), load_of(where, replace(USE, map_bytes=0))
    line = 64 / where.devices[1].memory_bandwidth
    more = load.batch * USE.pooling_factor * line
    assert load.seconds(shard) - without.seconds(shard) == pytest.approx(more)


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_a_table_with_an_id_map_is_cut_by_columns(share: float) -> None:
    memory = int(share * TABLE.stored_bytes) + MAP
    found = make_plan(load_of(topology(0, 1, 2, 3, memory=memory, front=0)))
    assert len(found.plan.shards) > 1
    assert all(shard.rows == ROWS for shard in found.plan.shards)
    assert all(used <= memory for used in found.figures.bytes)
    assert sum(report.map_bytes for report in rank_reports(found)) == MAP * len(found.plan.shards)


def test_one_that_even_columns_do_not_fit_is_cut_by_rows() -> None:
    narrow = replace(USE, table=StoredTable("item", ROWS, 12, RowFormat.INT8))
    where = topology(*range(6), memory=narrow.table.stored_bytes // 2 + MAP, front=5)
    found = make_plan(load_of(where, narrow))
    assert {shard.columns for shard in found.plan.shards} == {12}
    assert found.figures.map_bytes == (0, 0, 0, 0, 0, MAP)
    assert any(one.endswith("; the front maps its ids") for one in found.decisions)


def test_a_table_in_parts_is_cut_by_rows() -> None:
    # Half of it, and a tenth more.
    memory = int(0.55 * (TABLE.stored_bytes + MAP))
    found = make_plan(load_of(topology(0, 1, 2, memory=memory), PARTED))
    assert all(shard.columns == DIM for shard in found.plan.shards)
    assert len(found.plan.shards) > 1
    assert all(used <= memory for used in found.figures.bytes)
    assert sum(found.figures.map_bytes) == sum(part(shard.rows) for shard in found.plan.shards)


def test_a_hash_spreads_hot_rows_over_parts() -> None:
    hot = FeatureStatistics(histogram=(0.9, 0.1))
    uses = [replace(USE, features=(hot,), in_parts=in_parts) for in_parts in (True, False)]
    where, alone = topology(0, 1, front=0), Topology("cpu:2", (Device(), Device()))
    shares = [
        load_of(one, use).access_share("item", 0, ROWS // 2)
        for one in (where, alone)
        for use in uses
    ]
    assert shares == [0.5, 0.9, 0.9, 0.9]
    keys = [plan_key(load_of(one, use)) for one in (where, alone) for use in uses]
    assert keys[0] != keys[1] and keys[2] == keys[3]


def test_rows_of_hashes_are_in_no_parts() -> None:
    kinds = (IdMapSpec("zero"), IdMapSpec(HashedRows(12, 3)), IdMapSpec(hashed="identity"), None)
    tables = tuple(TableSpec(f"t{number}", 12, 4, id_map=kind) for number, kind in enumerate(kinds))
    uses = table_uses(ModelSpec("m", tables))
    assert [use.in_parts for use in uses] == [True, False, False, False]
