"""Plans that leave ranks out, where sharing with them costs more than it saves.

A plan for some of the ranks is a plan for all of them, with the others unused. These are tried:

    1. the ranks of some kinds, on some hosts: every choice of both; equal hosts are counted once.
       A single kind may have replicas, and fewer hosts have fewer towers to send to, so the bound
       of a larger choice does not rule out a smaller one.
    2. from each of them, and from all ranks, one rank fewer of each kind on each host, repeatedly.
       With the same kinds and hosts no plan of fewer ranks beats the bound of more.

A choice whose bound is no better than the best plan is skipped.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

from sharded_infer.errors import PlanError
from sharded_infer.planning.cost_model import CostModel, plan_key
from sharded_infer.planning.plan import Plan
from sharded_infer.planning.plan_result import PlanResult, figures_of, renumbered
from sharded_infer.planning.search.cost_arrays import table_costs
from sharded_infer.planning.search.lower_bound import lower_bound
from sharded_infer.planning.search.packing import capacities
from sharded_infer.planning.search.replicate import choose_replicas
from sharded_infer.planning.topology import Device, Topology

_MOST_CHOICES = 256  # of kinds and hosts
_MOST_PLANS = 64  # made in all

# The ranks of a choice, ascending.
_Ranks = tuple[int, ...]


def better_with_fewer(
    load: CostModel, best: PlanResult, plan_all: Callable[[CostModel], PlanResult]
) -> PlanResult:
    """The best of a plan for all ranks and of plans for fewer; equal devices are adjacent."""

    @cache
    def bound_of(ranks: _Ranks) -> float:
        smaller = load.only(ranks)
        costs, capacity = table_costs(smaller), capacities(smaller.topology)
        _, gain = choose_replicas(costs, capacity)
        return lower_bound(costs, capacity, gain)

    devices = load.topology.devices
    everything = tuple(range(len(devices)))
    seen = {_kind_of(load.topology, everything)}
    waiting = _one_fewer(devices, everything) + sorted(
        itertools.islice(_choices(devices), _MOST_CHOICES), key=bound_of
    )
    made = 0
    while waiting and made < _MOST_PLANS:
        ranks = waiting.pop(0)
        kind = _kind_of(load.topology, ranks)
        if kind in seen or bound_of(ranks) >= best.figures.max_seconds:
            continue
        seen.add(kind)
        made += 1
        try:
            found = plan_all(load.only(ranks))
        except PlanError:
            continue
        waiting += _one_fewer(devices, ranks)
        bound = min(best.bound_seconds, found.bound_seconds)
        if found.figures.max_seconds < best.figures.max_seconds:
            best = with_unused(found, ranks, load)
        best = replace(best, bound_seconds=bound)
    return best


def with_unused(found: PlanResult, ranks: Sequence[int], load: CostModel) -> PlanResult:
    """Extend a plan for some ranks (numbers ascending, fewer than all) to all of them."""
    used = {ranks[rank] for rank in found.plan.ranks}
    plan = Plan(
        load.topology,
        tuple(replace(shard, rank=ranks[shard.rank]) for shard in found.plan.shards),
        found.plan.replicated,
        plan_key(load),
        tuple(rank for rank in range(len(load.topology.devices)) if rank not in used),
    )
    decisions = (renumbered(decision, ranks) for decision in found.decisions)
    return PlanResult(
        plan,
        figures_of(plan, load),
        found.bound_seconds,
        (*decisions, unused_words(plan.unused)),
    )


def unused_words(unused: Sequence[int]) -> str:
    """The decision to leave ranks out, as text."""
    numbers = ", ".join(map(str, unused))
    if len(unused) == 1:
        return f"rank {numbers} is not used: sharing with it costs more than it saves"
    return f"ranks {numbers} are not used: sharing with them costs more than it saves"


def _one_fewer(devices: tuple[Device, ...], ranks: _Ranks) -> list[_Ranks]:
    last = {devices[rank]: rank for rank in ranks}
    if len(ranks) == 1:
        return []
    return [tuple(r for r in ranks if r != left) for left in sorted(last.values())]


def _choices(devices: Sequence[Device]) -> Iterator[_Ranks]:
    kinds = list(dict.fromkeys(_kind(device) for device in devices))
    for many in range(len(kinds), 0, -1):
        for some in itertools.combinations(kinds, many):
            for of_hosts in host_choices(devices, range(len(devices))):
                ranks = tuple(rank for rank in of_hosts if _kind(devices[rank]) in some)
                if ranks:
                    yield ranks


def host_choices(devices: Sequence[Device], ranks: Sequence[int]) -> Iterator[_Ranks]:
    """Subsets of ranks for every choice of hosts, most hosts first, the empty one last."""
    hosts: dict[int, list[int]] = {}
    for rank in ranks:
        hosts.setdefault(devices[rank].host, []).append(rank)
    # Of alike hosts, only the number chosen matters.
    sorts: dict[frozenset[tuple[Device, int]], list[list[int]]] = {}
    for of_host in hosts.values():
        sort = frozenset(Counter(_kind(devices[rank]) for rank in of_host).items())
        sorts.setdefault(sort, []).append(of_host)
    counts = [range(len(alike), -1, -1) for alike in sorts.values()]
    for taken in itertools.product(*counts):
        yield tuple(
            sorted(
                rank
                for alike, count in zip(sorts.values(), taken, strict=True)
                for of_host in alike[:count]
                for rank in of_host
            )
        )


def _kind(device: Device) -> Device:
    return replace(device, host=0)


def _kind_of(topology: Topology, ranks: _Ranks) -> frozenset[tuple[object, int]]:
    """A key that is equal for choices that differ only in equal hosts."""
    hosts: dict[int, Counter[Device]] = {}
    for rank in ranks:
        device = topology.devices[rank]
        hosts.setdefault(device.host, Counter())[_kind(device)] += 1
    return frozenset(Counter(frozenset(held.items()) for held in hosts.values()).items())
