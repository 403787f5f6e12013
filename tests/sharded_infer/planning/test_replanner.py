from dataclasses import replace

import pytest

from kernels.row_format import RowFormat
from sharded_infer.errors import PlanError
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Plan, Shard, StoredTable, check_plan
from sharded_infer.planning.plan_moves import Move, moves_between
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.replanner import Replan, replan
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.specs.feature_statistics import FeatureStatistics

USES = {
    f"t{i:02}": TableUse(
        StoredTable(f"t{i:02}", 1000 * (1 + i * i % 37), 16 * (1 + i % 5), RowFormat.INT8),
        (FeatureStatistics(1 + i % 4),),
    )
    for i in range(40)
}
TOTAL = sum(use.table.stored_bytes for use in USES.values())


def load_of(uses: dict[str, TableUse], topology: str) -> CostModel:
    return CostModel(uses, parse_topology(topology))


def checked(load: CostModel, previous: Plan, **options: object) -> Replan:
    again = replan(load, previous, **options)  # type: ignore[arg-type]
    check_plan(again.result.plan, {name: use.table for name, use in load.uses.items()})
    return again


def moved_bytes(again: Replan) -> int:
    return sum(move.bytes for move in again.moves)


@pytest.mark.parametrize("topology", ["cpu:4", "h100:4", "h100:2+cpu:1"])
def test_nothing_moves_when_nothing_changed(topology: str) -> None:
    load = load_of(USES, topology)
    assert checked(load, make_plan(load).plan).moves == ()


@pytest.mark.parametrize("topology", ["cpu:4", "h100:4"])
def test_a_table_that_grew_moves_its_new_rows_only(topology: str) -> None:
    load = load_of(USES, topology)
    table = USES["t10"].table
    grown = replace(USES["t10"], table=replace(table, rows=table.rows + 500))
    again = checked(load_of({**USES, "t10": grown}, topology), make_plan(load).plan)
    assert {move.table for move in again.moves} == {"t10"}
    replicas = 4 if "t10" in again.result.plan.replicated else 1
    assert moved_bytes(again) <= 500 * table.row_bytes * replicas + 4


def test_unused_ranks_are_used_where_the_others_are_too_small_now() -> None:
    uses = {name: USES[name] for name in ("t03", "t10", "t17")}
    total = sum(use.table.stored_bytes for use in uses.values())
    topology = f"h100:1x{total * 1.2 / 1e6}MB+cpu:1"
    previous = replace(make_plan(load_of(uses, topology)).plan, unused=(1,))
    checked(load_of(uses, topology), previous)
    table = uses["t10"].table
    grown = replace(uses["t10"], table=replace(table, rows=table.rows * 4))
    again = checked(load_of({**uses, "t10": grown}, topology), previous)
    assert again.result.plan.unused == ()


def test_a_lost_rank_moves_what_it_held() -> None:
    previous = make_plan(load_of(USES, "cpu:4")).plan
    held = previous.bytes_by_rank({n: u.table for n, u in USES.items()})
    again = checked(load_of(USES, "cpu:3"), previous, lost_ranks=[1])
    assert held[1] <= moved_bytes(again) <= held[1] * 1.01
    assert again.fresh_bytes > 2 * moved_bytes(again)


def test_more_bytes_make_it_better_and_are_kept_to() -> None:
    previous = make_plan(load_of(USES, "cpu:4")).plan
    load = load_of(USES, "cpu:5")
    times, moved = [], []
    for allowance in (0, TOTAL // 20, TOTAL // 4, TOTAL):
        again = checked(load, previous, max_move_bytes=allowance)
        times.append(again.result.figures.max_seconds)
        moved.append(moved_bytes(again))
        assert moved_bytes(again) <= allowance
    assert times == sorted(times, reverse=True)
    assert moved[0] == 0 and times[-1] < times[0] * 0.9


def test_a_lost_rank_that_never_was_is_refused() -> None:
    load = load_of(USES, "cpu:2")
    with pytest.raises(PlanError, match="lost rank 2: the previous topology has ranks 0 to 1"):
        replan(load, make_plan(load).plan, lost_ranks=[2])


def test_moves_are_what_a_rank_did_not_hold() -> None:
    tables = {"a": StoredTable("a", 10, 16, RowFormat.INT8)}
    topology = parse_topology("cpu:2")
    old = Plan(topology, (Shard("a", 0, 0, 6, 0, 16), Shard("a", 1, 6, 10, 0, 16)))
    new = Plan(topology, (Shard("a", 0, 0, 4, 0, 16), Shard("a", 1, 4, 10, 0, 16)))
    assert moves_between(old, new, tables) == [Move("a", 1, 2 * 20)]
    everywhere = Plan(topology, (), replicated=("a",))
    assert moves_between(old, everywhere, tables) == [Move("a", 1, 6 * 20), Move("a", 0, 4 * 20)]
    assert moves_between(everywhere, new, tables) == []
