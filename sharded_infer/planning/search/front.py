"""Plans for a front and its hosts: choice of the tables it keeps and the hosts it asks.

Each plan has two parts: some tables whole on the front's own ranks, the others on hosts.

    1. tables are put in order by what keeping them is worth for each byte of the front's memory, in
       several ways (search/front_estimates.py). One that has no room after those before is skipped
    2. a request is estimated for every order, choice of hosts and number of tables kept
    3. for each order and choice of hosts the best number is planned, if its estimate is near the
       best
    4. around the best plan, other numbers are planned

The plan with the least time of a request is the best; of equal ones, the one with fewer ranks.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import PlanError
from sharded_infer.planning.cost_model import CostModel, plan_key
from sharded_infer.planning.front_traffic import table_traffic, traffic_by_host
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.plan_result import PlanResult, figures_of, renumbered
from sharded_infer.planning.search.advice import excess
from sharded_infer.planning.search.fewer_ranks import host_choices, unused_words
from sharded_infer.planning.search.front_estimates import FrontEstimates
from sharded_infer.planning.search.packing import capacities
from sharded_infer.planning.topology import FrontCosts

_MOST_CHOICES = 256  # of hosts
_MOST_PLANS = 16  # before a good one is improved
_NEAR = 1.2  # estimates beyond this of the best are not planned
_STEPS = (8, 4, 2, 1)  # of kept tables

_Ranks = tuple[int, ...]
_PlanAll = Callable[[CostModel], PlanResult]


def plan_with_front(load: CostModel, plan_all: _PlanAll) -> PlanResult:
    """Plan tables on a front and other hosts; errors as `make_plan`.

    The topology has a front and a device on another host; `plan_all` plans one part.
    """
    devices, front = load.topology.devices, load.topology.front or FrontCosts()
    asked = tuple(rank for rank, one in enumerate(devices) if load.topology.is_asked(one))
    own = tuple(rank for rank in range(len(devices)) if rank not in asked)
    estimates = FrontEstimates(load, front, own, asked)

    @cache
    def part(names: Sequence[str], ranks: _Ranks) -> PlanResult | None:
        try:
            return plan_all(load.part(names, ranks))
        except PlanError:
            return None

    @cache
    def planned(kept: tuple[str, ...], ranks: _Ranks) -> PlanResult | None:
        others = tuple(sorted(load.uses.keys() - set(kept)))
        parts = [(names, at) for names, at in ((kept, own), (others, ranks)) if names]
        return _together(load, [(part(names, at) if at else None, at) for names, at in parts])

    order, count, ranks = _best_of(estimates, host_choices(devices, asked), planned)
    for step in _STEPS:
        near = [n for n in (count, count - step, count + step) if 0 <= n <= len(order)]
        count = min(near, key=lambda n: _rank(planned(order[:n], ranks)))
    best = planned(order[:count], ranks)
    if best is None:
        raise PlanError(excess(load))
    plan = replace(best.plan, key=plan_key(load))
    decisions = (*_explained(load, plan, order[:count]), *best.decisions)
    if plan.unused:
        decisions = (*decisions, unused_words(plan.unused))
    return PlanResult(plan, best.figures, estimates.bound(), decisions)


def _best_of(
    estimates: FrontEstimates,
    choices: Iterator[_Ranks],
    planned: Callable[[tuple[str, ...], _Ranks], PlanResult | None],
) -> tuple[tuple[str, ...], int, _Ranks]:
    tried: list[tuple[float, int, int, _Ranks]] = []
    for ranks in itertools.islice(choices, _MOST_CHOICES):
        for number in range(len(estimates.orders)):
            seconds = estimates.requests(number, ranks)
            tried.append((float(seconds.min()), number, int(seconds.argmin()), ranks))
    tried.sort(key=lambda one: (one[0], len(one[3]), one[1]))
    best, found = tried[0], None
    for one in tried[:_MOST_PLANS]:
        # Estimates ignore that rows are whole; the next may fit.
        if found is not None and one[0] > _NEAR * tried[0][0]:
            break
        _, number, count, ranks = one
        result = planned(tuple(estimates.orders[number][:count]), ranks)
        if _rank(result) < _rank(found):
            best, found = one, result
    _, number, count, ranks = best
    return tuple(estimates.orders[number]), count, ranks


def _rank(found: PlanResult | None) -> tuple[float, int]:
    if found is None:
        return math.inf, 0
    return found.figures.request_seconds, len({shard.rank for shard in found.plan.shards})


def _together(
    load: CostModel, parts: Sequence[tuple[PlanResult | None, _Ranks]]
) -> PlanResult | None:
    shards: list[Shard] = []
    decisions: list[str] = []
    for found, ranks in parts:
        if found is None:
            return None
        shards += [replace(shard, rank=ranks[shard.rank]) for shard in found.plan.shards]
        decisions += [renumbered(decision, ranks) for decision in found.decisions]
    shards.sort(key=lambda s: (s.table, s.first_row, s.first_column))
    used = {shard.rank for shard in shards}
    unused = tuple(rank for rank in range(len(load.topology.devices)) if rank not in used)
    plan = Plan(load.topology, tuple(shards), unused=unused)
    return PlanResult(plan, figures_of(plan, load), 0.0, tuple(decisions))


def _explained(load: CostModel, plan: Plan, kept: Sequence[str]) -> list[str]:
    stored = {name: use.table.stored_bytes + use.map_bytes for name, use in load.uses.items()}
    words = []
    for name in kept:
        saved = size_text(table_traffic(load.uses[name], load.batch).total)
        words.append(
            f"{name}: kept by the front, which saves {saved} a request for "
            f"{size_text(stored[name])} of memory"
        )
    devices = plan.topology.devices
    own = [rank for rank, device in enumerate(devices) if not plan.topology.is_asked(device)]
    room = capacities(plan.topology)[own].sum() - sum(stored[name] for name in kept)
    others = sorted(stored.keys() - set(kept))
    reasons = {
        "the front's memory has no room for": [name for name in others if stored[name] > room],
        "even with the way there, hosts are faster for": [
            name for name in others if stored[name] <= room
        ],
    }
    words += [f"{why} {', '.join(names)}" for why, names in reasons.items() if names]
    hosts = ", ".join(map(str, traffic_by_host(plan, load)))
    words.append(f"hosts that the front asks: {hosts}" if hosts else "the front asks no host")
    return words
