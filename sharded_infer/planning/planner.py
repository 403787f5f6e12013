"""The planner: a pure, deterministic function from tables and a topology to a plan.

It minimises the time of the slowest rank, then the memory of the fullest, within the memory limits.
Times within 2% of the bound count as equal (0.5% if the bound is out of reach): the cost model is
no more accurate, and balanced memory is worth more.

    1. replicate small tables where that saves sending (planning/search/replicate.py)
    2. place all others greedily by the larger of time and memory; cut what fits nowhere
    3. move, swap and then cut items of the slowest rank until it is near the mean
    4. the same for the memory of the fullest rank, where it costs no time
    5. if fewer ranks could be better, plan for them too; keep the best (search/fewer_ranks.py)

Where a front asks other hosts, search/front.py chooses the tables it keeps and the hosts it asks,
and these steps plan each side.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, replace

import numpy as np

from sharded_infer.errors import PlanError
from sharded_infer.planning.cost_model import CostModel, plan_key
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.plan_result import PlanResult, figures_of, renumbered
from sharded_infer.planning.search.advice import advice, excess
from sharded_infer.planning.search.balance import balance_bytes, balance_seconds, place_greedily
from sharded_infer.planning.search.cost_arrays import TableCosts, table_costs
from sharded_infer.planning.search.fewer_ranks import better_with_fewer
from sharded_infer.planning.search.fill import fill
from sharded_infer.planning.search.front import plan_with_front
from sharded_infer.planning.search.lower_bound import lower_bound
from sharded_infer.planning.search.packing import Packing, Rectangle, capacities
from sharded_infer.planning.search.replicate import choose_replicas
from sharded_infer.planning.search.split import (
    cut_evenly,
    split_for_bytes,
    split_for_seconds,
    split_to_fit,
)
from sharded_infer.planning.topology import Device

TIME_RESOLUTION = 0.02  # above the bound
_FINEST = 0.005  # where the bound is out of reach, times this close count as equal
_TIME_TOLERANCE = 0.001
_CUT_ABOVE = 0.01  # above the bound, within the resolution
_MEMORY_TOLERANCE = 0.02
_MEMORY_SLACKS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)  # of time, while memory is evened
_ROUNDS = 4
_FEW_TABLES = 2000  # up to here, several ways to begin are tried
_FEW_ITEMS = 12  # up to here, filling is tried
_GRAINS = (1.0, 0.7, 0.5, 0.35)  # largest part of a heavy table, of a rank's time


def make_plan(load: CostModel) -> PlanResult:
    """Plan tables on a topology; PlanError with excess and advice if they do not fit."""
    try:
        return _planned(load, _make_plan)
    except PlanError as error:
        raise PlanError(f"{error}{advice(load, fits)}") from None


def _planned(load: CostModel, make: Callable[[CostModel], PlanResult]) -> PlanResult:
    # Devices are sorted, so that their given order changes nothing.
    given = load.topology.devices
    order = sorted(range(len(given)), key=lambda rank: _device_key(given[rank]))
    if order == list(range(len(given))):
        return make(load)
    ordered = replace(load.topology, devices=tuple(given[rank] for rank in order))
    found = make(CostModel(load.uses, ordered, load.batch))
    shards = (replace(shard, rank=order[shard.rank]) for shard in found.plan.shards)
    plan = Plan(
        load.topology,
        tuple(sorted(shards, key=_place_key)),
        found.plan.replicated,
        plan_key(load),
        tuple(sorted(order[rank] for rank in found.plan.unused)),
    )
    decisions = tuple(renumbered(decision, order) for decision in found.decisions)
    return PlanResult(plan, figures_of(plan, load), found.bound_seconds, decisions)


def _device_key(device: Device) -> tuple[float, ...]:
    numbers = [v for v in astuple(device) if not isinstance(v, str)]
    return (-device.memory_bandwidth, *(-1.0 if v is None else float(v) for v in numbers))


def _place_key(shard: Shard) -> tuple[str, int, int]:
    return shard.table, shard.first_row, shard.first_column


def _make_plan(load: CostModel) -> PlanResult:
    if load.uses and any(map(load.topology.is_asked, load.topology.devices)):
        return plan_with_front(load, _plan_all)
    best = _plan_all(load)
    return better_with_fewer(load, best, _plan_all) if len(load.topology.devices) > 1 else best


def fits(load: CostModel) -> bool:
    """True if `make_plan` would place all tables."""

    def make(load: CostModel) -> PlanResult:
        has_front = load.uses and any(map(load.topology.is_asked, load.topology.devices))
        return plan_with_front(load, place) if has_front else place(load)

    def place(load: CostModel) -> PlanResult:
        return _plan_all(load, even=False)

    try:
        _planned(load, make)
    except PlanError:
        return False
    return True


def _plan_all(load: CostModel, *, even: bool = True) -> PlanResult:
    """Plan without a front; `even` False places all tables, and moves none."""
    costs = table_costs(load)
    capacity = capacities(load.topology)
    replicas, gain = choose_replicas(costs, capacity)
    if load.topology.front is not None:
        # Only the front has a tower: a replica elsewhere saves nothing.
        replicas, gain = replicas[:0], 0.0
    bound = lower_bound(costs, capacity, gain)
    if not even:
        packing, items = begin(load, replicas.tolist(), costs)
        place_all(packing, items)
        return finish(packing, replicas.tolist(), bound)
    return _plan_once(load, costs, replicas.tolist(), bound)


def _plan_once(load: CostModel, costs: TableCosts, replicas: list[int], bound: float) -> PlanResult:
    best, items = begin(load, replicas, costs)
    place_all(best, items)
    _even_seconds(best, bound)
    if best.busy.max() > bound * (1 + _TIME_TOLERANCE) and len(costs.names) <= _FEW_TABLES:
        # Few or heavy tables: alternative starts, each at most as long as the first.
        for packing in _alternatives(load, costs, replicas, bound, best):
            _even_seconds(packing, bound)
            if _rank(packing, bound) < _rank(best, bound):
                best = packing
    return finish(_even_memory(best, bound), replicas, bound)


def finish(packing: Packing, replicas: Sequence[int], bound: float) -> PlanResult:
    """The plan of a packing, with its figures and a lower bound on the seconds of all plans."""
    names = packing.costs.names
    plan = Plan(
        topology=packing.load.topology,
        shards=tuple(_shards(packing)),
        replicated=tuple(names[table] for table in replicas),
        key=plan_key(packing.load),
    )
    return PlanResult(plan, figures_of(plan, packing.load), bound, tuple(packing.log))


def _rank(packing: Packing, bound: float) -> tuple[int, float]:
    excess = float(packing.busy.max()) / (bound * (1 + TIME_RESOLUTION)) - 1
    return math.ceil(max(0.0, excess) / _FINEST), float(packing.held.max())


def _alternatives(
    load: CostModel, costs: TableCosts, replicas: list[int], bound: float, best: Packing
) -> Iterator[Packing]:
    packing, items = begin(load, replicas, costs)
    if len(items) <= _FEW_ITEMS:
        filled = fill(packing, items, bound, float(best.busy.max()))
        if filled is not None:
            yield filled
    for grain in _GRAINS:
        packing, items = begin(load, replicas, costs)
        room = grain * (bound - float(packing.busy.min()))
        parts = [part for item in items for part in cut_evenly(packing, item, room)]
        # Parts may not fit where whole items do.
        if len(parts) > len(items) and _place(packing, parts):
            yield packing


def begin(
    load: CostModel, replicas: Sequence[int], costs: TableCosts | None = None
) -> tuple[Packing, list[int]]:
    """A packing of the replicated tables, and the other tables as unplaced whole items."""
    costs = costs if costs is not None else table_costs(load)
    packing = Packing(load, costs)
    _place_replicas(packing, replicas)
    whole = sorted(set(range(len(costs.names))) - set(replicas))
    return packing, packing.add([_whole(costs, table) for table in whole]).tolist()


def place_all(packing: Packing, items: list[int]) -> None:
    """Place items, cutting those that fit nowhere whole; PlanError if the tables do not fit."""
    if not _place(packing, items):
        raise PlanError(excess(packing.load))


def _place(packing: Packing, items: list[int]) -> bool:
    return all(split_to_fit(packing, item) for item in place_greedily(packing, items))


def _even_seconds(packing: Packing, bound: float) -> None:
    steps = 16 * len(packing.busy) + 64
    for _ in range(_ROUNDS):
        before = float(packing.busy.max())
        balance_seconds(packing, bound * (1 + _TIME_TOLERANCE), steps=steps)
        # Cuts are permanent: none is made for a negligible gain.
        split_for_seconds(packing, bound * (1 + _CUT_ABOVE), _TIME_TOLERANCE, steps=steps)
        if packing.busy.max() > before * (1 - _TIME_TOLERANCE):
            return


def _even_memory(packing: Packing, bound: float) -> Packing:
    slowest, good = float(packing.busy.max()), bound * (1 + TIME_RESOLUTION)
    allowed = good if slowest <= good else slowest * (1 + _FINEST)
    steps = 16 * len(packing.busy) + 64
    best = packing
    for slack in _MEMORY_SLACKS:
        target = float(best.held.mean()) * (1 + _MEMORY_TOLERANCE)
        if best.held.max() <= target:
            break
        # Cuts cost time on their ranks; afterwards it is rebalanced over all ranks at the memory
        # reached.
        trial = best.copy()
        balance_bytes(trial, allowed * (1 + slack), target, steps=steps)
        split_for_bytes(trial, allowed * (1 + slack), _MEMORY_TOLERANCE, steps=steps)
        limits = trial.capacity
        trial.capacity = np.minimum(limits, max(target, float(trial.held.max())))
        _even_seconds(trial, bound)
        trial.capacity = limits
        if trial.busy.max() <= allowed and trial.held.max() < best.held.max():
            best = trial
    return best


def _place_replicas(packing: Packing, replicas: Sequence[int]) -> None:
    costs, ranks = packing.costs, len(packing.busy)
    (kind,) = costs.classes if replicas else costs.classes[:1]
    for table in replicas:
        dim = float(costs.dims[table])
        kept = kind.per_id[table] + dim * (kind.per_id_column[table] + kind.per_column_kept[table])
        packing.busy += kept / ranks
        packing.held += packing.bytes_of([_whole(costs, table)])[0]
    if replicas:
        packing.log.append(
            f"{len(replicas)} small tables are replicated on every rank, which saves sending: "
            + ", ".join(sorted(costs.names[table] for table in replicas))
        )


def _whole(costs: TableCosts, table: int) -> Rectangle:
    return Rectangle(table, 0, int(costs.rows[table]), 0, int(costs.dims[table]))


def _shards(packing: Packing) -> list[Shard]:
    costs = packing.costs
    shards = []
    for rank, items in enumerate(packing.items):
        for item in items:
            r = packing.rectangles[item]
            shards.append(
                Shard(
                    costs.names[r.table],
                    rank,
                    r.first_row,
                    r.last_row,
                    r.first_column,
                    r.last_column,
                )
            )
    return sorted(shards, key=_place_key)
