"""A plan with its figures: what each rank costs, and how far that is from the best there can be."""

from dataclasses import dataclass

from sharded_infer.load_model import LoadModel
from sharded_infer.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """What a plan costs under a load model, however it was made.

    Attributes:
        seconds: of each rank, a batch.
        bytes: of each rank.
        shares: of each rank's memory that is used; None where it has no limit.
    """

    seconds: tuple[float, ...]
    bytes: tuple[int, ...]
    shares: tuple[float | None, ...]

    @property
    def max_seconds(self) -> float:
        """Seconds of the slowest rank: they set the latency."""
        return max(self.seconds)

    @property
    def memory_imbalance(self) -> float:
        """Bytes of the fullest rank over the mean; 1 is even."""
        mean = sum(self.bytes) / len(self.bytes)
        return max(self.bytes) / mean if mean else 1.0


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What the planner made.

    Attributes:
        plan: the plan.
        figures: its costs.
        bound_seconds: no plan's slowest rank is faster.
        decisions: in words, in order: replicas, cuts, and their reasons.
    """

    plan: Plan
    figures: PlanFigures
    bound_seconds: float
    decisions: tuple[str, ...]

    @property
    def gap(self) -> float:
        """How far the slowest rank is from the bound; 0.02 is 2% above it."""
        return self.figures.max_seconds / self.bound_seconds - 1 if self.bound_seconds else 0.0


def figures_of(plan: Plan, load: LoadModel) -> PlanFigures:
    """Costs of any plan under a load model.

    Args:
        plan: a checked plan.
        load: the load model of its tables on its topology.
    """
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
