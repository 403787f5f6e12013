"""A plan with its figures: the cost of each rank, and the gap to the lower bound."""

from dataclasses import dataclass

from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """A plan's costs under a cost model.

    Attributes:
        seconds: of each rank, for a batch.
        shares: of each rank's memory that is used; None if it has no limit.
    """

    seconds: tuple[float, ...]
    bytes: tuple[int, ...]
    shares: tuple[float | None, ...]

    @property
    def max_seconds(self) -> float:
        """Seconds of the slowest rank, which set the latency."""
        return max(self.seconds)

    @property
    def memory_imbalance(self) -> float:
        """Bytes of the fullest rank over the mean; 1 is even."""
        mean = sum(self.bytes) / len(self.bytes)
        return max(self.bytes) / mean if mean else 1.0


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The planner's result.

    Attributes:
        bound_seconds: a lower bound on the slowest rank of all plans.
        decisions: replicas and cuts in words, with their reasons, in order.
    """

    plan: Plan
    figures: PlanFigures
    bound_seconds: float
    decisions: tuple[str, ...]

    @property
    def gap(self) -> float:
        """The distance of the slowest rank from the bound; 0.02 is 2% above it."""
        return self.figures.max_seconds / self.bound_seconds - 1 if self.bound_seconds else 0.0


def figures_of(plan: Plan, load: CostModel) -> PlanFigures:
    """Costs of any checked plan under a cost model of its tables and topology."""
    tables = {name: use.table for name, use in load.uses.items()}
    held = plan.bytes_by_rank(tables)
    return PlanFigures(
        seconds=tuple(load.under(plan).device_seconds(plan)),
        bytes=tuple(held),
        shares=tuple(
            None if device.memory_bytes is None else used / device.memory_bytes
            for device, used in zip(plan.topology.devices, held, strict=True)
        ),
    )
