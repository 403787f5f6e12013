"""A plan with its figures: the cost of each rank, and the gap to the lower bound."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.front_traffic import front_seconds
from sharded_infer.planning.id_map_memory import map_bytes_by_rank
from sharded_infer.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """A plan's costs under a cost model, by rank.

    Attributes:
        seconds: for a batch.
        bytes: of rows, with those of `map_bytes`.
        shares: used part of each rank's memory; None without a limit.
        map_bytes: of id maps, where a front asks hosts.
        front_seconds: of a front to ask other hosts and to read their responses.
    """

    seconds: tuple[float, ...]
    bytes: tuple[int, ...]
    shares: tuple[float | None, ...]
    map_bytes: tuple[int, ...]
    front_seconds: float = 0.0

    @property
    def max_seconds(self) -> float:
        """Seconds of the slowest rank."""
        return max(self.seconds)

    @property
    def request_seconds(self) -> float:
        """Seconds of all lookups of a batch: all ranks work at once while the front waits."""
        return self.front_seconds + self.max_seconds

    @property
    def memory_imbalance(self) -> float:
        """Bytes of the fullest rank over the mean; 1 is even."""
        mean = sum(self.bytes) / len(self.bytes)
        return max(self.bytes) / mean if mean else 1.0


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The planner's result.

    `bound_seconds` is a lower bound on the request's seconds over all plans; `decisions` describe
    replicas and cuts with their reasons, in order.
    """

    plan: Plan
    figures: PlanFigures
    bound_seconds: float
    decisions: tuple[str, ...]

    @property
    def gap(self) -> float:
        """The relative distance of the request's seconds from the bound; 0.02 is 2% above it."""
        return self.figures.request_seconds / self.bound_seconds - 1 if self.bound_seconds else 0.0


def figures_of(plan: Plan, load: CostModel) -> PlanFigures:
    """Costs of any checked plan under a cost model of its tables and topology."""
    tables = {name: use.table for name, use in load.uses.items()}
    mapped = {name: load.map_bytes(name) for name in load.uses}
    in_parts = {name for name, use in load.uses.items() if use.in_parts}
    rows = {name: table.rows for name, table in tables.items()}
    maps = map_bytes_by_rank(plan, mapped, rows, in_parts)
    held = list(map(add, plan.bytes_by_rank(tables), maps))
    return PlanFigures(
        seconds=tuple(load.under(plan).device_seconds(plan)),
        bytes=tuple(held),
        shares=tuple(
            None if device.memory_bytes is None else used / device.memory_bytes
            for device, used in zip(plan.topology.devices, held, strict=True)
        ),
        map_bytes=tuple(maps),
        front_seconds=front_seconds(plan, load),
    )


def renumbered(decision: str, ranks: Sequence[int]) -> str:
    """A decision's text with ranks renumbered: `ranks[n]` for n."""

    def numbers(match: re.Match[str]) -> str:
        return re.sub(r"[0-9]+", lambda number: str(ranks[int(number[0])]), match[0])

    return re.sub(r"\branks? [0-9]+(, [0-9]+)*", numbers, decision)
