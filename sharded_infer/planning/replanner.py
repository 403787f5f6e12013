"""The replanner: a plan for changed tables or devices that moves few bytes.

1. keep every shard whose rank still exists; extend the last shards of a table that grew
2. place what is new or was lost, greedily; cut what fits nowhere
3. balance time and memory, as the planner does, one change at a time while the bytes allow
4. if a plan from scratch is faster, and moves no more than allowed, take that instead
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sharded_infer.errors import PlanError
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.planning.plan_moves import Move, moves_between
from sharded_infer.planning.plan_result import PlanResult
from sharded_infer.planning.planner import TIME_RESOLUTION, begin, finish, make_plan, place_all
from sharded_infer.planning.search.balance import balance_bytes, balance_seconds
from sharded_infer.planning.search.cost_arrays import table_costs
from sharded_infer.planning.search.fewer_ranks import with_unused
from sharded_infer.planning.search.packing import Packing, Rectangle
from sharded_infer.planning.search.split import split_for_seconds

_ENOUGH = 0.01  # relative distance from the mean that is not worth moving bytes for


@dataclass(frozen=True, slots=True)
class Replan:
    """A new plan and its moves, largest first; `fresh_*` are of the best plan from scratch."""

    result: PlanResult
    moves: tuple[Move, ...]
    fresh_bytes: int
    fresh_seconds: float


def replan(
    load: CostModel,
    previous: Plan,
    *,
    max_move_bytes: int | None = None,
    lost_ranks: Sequence[int] = (),
) -> Replan:
    """Replan, moving few bytes. Unused ranks stay unused, unless they are needed.

    `max_move_bytes` may be copied beyond new and lost rows (None: none). Missing `lost_ranks` of
    the previous topology shift later ranks. Raises PlanError if the tables do not fit, or a lost
    rank is unknown.
    """
    ranks = len(load.topology.devices)
    old_rank = _old_ranks(previous, ranks, lost_ranks)
    fresh = make_plan(load)
    tables = {name: use.table for name, use in load.uses.items()}
    fresh_moves = moves_between(previous, fresh.plan, tables, old_rank)
    bound, more = fresh.bound_seconds, max_move_bytes or 0
    everything = list(range(ranks))
    used = [rank for rank in everything if old_rank.get(rank) not in previous.unused] or everything
    try:
        chosen, budget = _keep(load, previous, old_rank, used, bound, more)
    except PlanError:
        # The ranks in use cannot hold the tables any more.
        if used == everything:
            raise
        chosen, budget = _keep(load, previous, old_rank, everything, bound, more)
    moves = moves_between(previous, chosen.plan, tables, old_rank)
    fresh_seconds = fresh.figures.request_seconds
    worth_it = chosen.figures.request_seconds > fresh_seconds * (1 + TIME_RESOLUTION)
    if worth_it and sum(move.bytes for move in fresh_moves) <= budget:
        chosen, moves = fresh, fresh_moves
    return Replan(
        result=chosen,
        moves=tuple(moves),
        fresh_bytes=sum(move.bytes for move in fresh_moves),
        fresh_seconds=fresh_seconds,
    )


def _keep(
    load: CostModel,
    previous: Plan,
    old_rank: Mapping[int, int],
    used: Sequence[int],
    bound: float,
    more_bytes: int,
) -> tuple[PlanResult, int]:
    """The previous plan on some ranks, improved within the moved bytes; and those bytes."""
    tables = {name: use.table for name, use in load.uses.items()}
    old_of = {at: old_rank[rank] for at, rank in enumerate(used) if rank in old_rank}

    def moved_by(plan: Plan) -> int:
        return sum(move.bytes for move in moves_between(previous, plan, tables, old_of))

    packing, replicated = _kept_packing(load.only(used), previous, tables, old_of)
    kept = finish(packing, replicated, bound)
    budget = moved_by(kept.plan) + more_bytes
    chosen = _improve(packing, replicated, kept, moved_by, budget)
    whole = len(used) == len(load.topology.devices)
    return chosen if whole else with_unused(chosen, used, load), budget


def _old_ranks(previous: Plan, ranks: int, lost: Sequence[int]) -> dict[int, int]:
    count = len(previous.topology.devices)
    for rank in lost:
        if not 0 <= rank < count:
            raise PlanError(f"lost rank {rank}: the previous topology has ranks 0 to {count - 1}")
    left = [rank for rank in range(count) if rank not in set(lost)]
    return dict(enumerate(left[:ranks]))


def _kept_packing(
    load: CostModel,
    previous: Plan,
    tables: Mapping[str, StoredTable],
    old_rank: Mapping[int, int],
) -> tuple[Packing, list[int]]:
    costs = table_costs(load)
    index = {name: number for number, name in enumerate(costs.names)}
    # Ranks serve equal parts only if all devices are alike.
    alike = len(costs.classes) == 1
    replicated = [index[name] for name in previous.replicated if name in index and alike]
    packing, _ = begin(load, replicated, costs)
    new_rank = {old: new for new, old in old_rank.items()}
    shards: dict[str, list[Shard]] = {name: [] for name in index}
    for shard in previous.shards:
        if shard.table in index:
            shards[shard.table].append(shard)
    waiting: list[int] = []
    for name, number in index.items():
        if number in replicated:
            continue
        rectangles = _fit(shards[name], tables[name], number)
        items = packing.add([rectangle for _, rectangle in rectangles]).tolist()
        for (rank, _), item in zip(rectangles, items, strict=True):
            target = None if rank is None else new_rank.get(rank)
            fits = target is not None and (
                packing.held[target] + packing.bytes[item] <= packing.capacity[target]
            )
            if target is not None and fits:
                packing.place(item, target)
            else:
                waiting.append(item)
    place_all(packing, waiting)
    return packing, replicated


def _fit(
    shards: Sequence[Shard], table: StoredTable, number: int
) -> list[tuple[int | None, Rectangle]]:
    """A table's old shards, extended to cover the table now; the whole table if impossible."""
    dims = max((shard.last_column for shard in shards), default=0)
    if dims != table.dim:
        return [(None, Rectangle(number, 0, table.rows, 0, table.dim))]
    old_rows = max(shard.last_row for shard in shards)
    rectangles: list[tuple[int | None, Rectangle]] = []
    for shard in shards:
        # New rows go to the shards of the last ones; removed rows leave their shard.
        last = table.rows if shard.last_row == old_rows else min(shard.last_row, table.rows)
        if shard.first_row < last:
            rectangles.append(
                (
                    shard.rank,
                    Rectangle(number, shard.first_row, last, shard.first_column, shard.last_column),
                )
            )
    return rectangles


def _improve(
    packing: Packing,
    replicated: Sequence[int],
    kept: PlanResult,
    moved_by: Callable[[Plan], int],
    budget: int,
) -> PlanResult:
    best, moved = kept, moved_by(kept.plan)
    for _ in range(16 * len(packing.busy) + 64):
        trial = packing.copy()
        trial.most_moved_bytes = budget - moved
        _one_step(trial)
        if _same(trial, packing):
            break
        result = finish(trial, replicated, kept.bound_seconds)
        moved = moved_by(result.plan)
        if moved > budget:
            break
        packing, best = trial, result
    return best


def _one_step(packing: Packing) -> None:
    mean_seconds = float(packing.busy.mean())
    if packing.busy.max() > mean_seconds * (1 + _ENOUGH):
        before = packing.busy.copy()
        balance_seconds(packing, mean_seconds * (1 + _ENOUGH), steps=1)
        if np.array_equal(before, packing.busy):
            split_for_seconds(packing, 0.0, _ENOUGH, steps=1)
        if not np.array_equal(before, packing.busy):
            return
    limit = float(packing.busy.max())
    balance_bytes(packing, limit, float(packing.held.mean()) * (1 + _ENOUGH), steps=1)


def _same(one: Packing, other: Packing) -> bool:
    return bool(np.array_equal(one.busy, other.busy) and np.array_equal(one.held, other.held))
