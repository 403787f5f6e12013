"""A case planned by our planner and by TorchRec's, both scored by our cost model."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.plan.families import PlanCase
from benchmarks.plan.torchrec_planner import Outcome, Search, TorchRecRun, run_torchrec
from sharded_infer.planning.plan import check_plan
from sharded_infer.planning.plan_result import PlanFigures, PlanResult, figures_of
from sharded_infer.planning.planner import make_plan

_REPEATS = 3
_REPEAT_BELOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TorchRecFigures:
    """Figures of TorchRec's planner beside ours.

    Attributes:
        seconds: of planning; None without a plan.
        time_ratio: its plan's slowest rank over ours, by our cost model; above 1 ours is better.
        memory_imbalance: bytes of its fullest rank over the mean.
        reason: why there is no plan.
    """

    outcome: Outcome
    seconds: float | None = None
    time_ratio: float | None = None
    memory_imbalance: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlanMeasurement:
    """The figures of a case.

    Attributes:
        seconds: of our planning; the median of three if short.
        gap: of our plan's slowest rank above the lower bound; 0.02 is 2%.
        memory_imbalance: bytes of our plan's fullest rank over the mean.
        torchrec: figures of TorchRec's planner for each search.
    """

    family: str
    tables: int
    devices: int
    seconds: float
    gap: float
    memory_imbalance: float
    torchrec: dict[Search, TorchRecFigures]

    def fields(self) -> dict[str, object]:
        """The figures for JSON; `torchrec_...` without a search's name is its better plan."""
        found = {s: f for s, f in self.torchrec.items() if f.time_ratio is not None}
        best = min(found, key=lambda s: found[s].time_ratio or 0.0, default=None)
        values: dict[str, object] = {
            "family": self.family,
            "tables": self.tables,
            "devices": self.devices,
            "seconds": self.seconds,
            "gap": self.gap,
            "memory_imbalance": self.memory_imbalance,
            "torchrec_seconds": found[best].seconds if best else None,
            "torchrec_time_ratio": found[best].time_ratio if best else None,
            "torchrec_memory_imbalance": found[best].memory_imbalance if best else None,
            "torchrec_search": best,
        }
        for search, figures in self.torchrec.items():
            values |= {
                f"torchrec_{search}_outcome": figures.outcome,
                f"torchrec_{search}_seconds": figures.seconds,
                f"torchrec_{search}_time_ratio": figures.time_ratio,
                f"torchrec_{search}_memory_imbalance": figures.memory_imbalance,
            }
        return values


@dataclass(slots=True)
class PlanBench:
    """Measures cases, and skips a search that timed out on fewer tables of the family.

    Attributes:
        limit_seconds: limit of each of TorchRec's runs; 0 leaves TorchRec out.
    """

    limit_seconds: float
    _gave_up: set[tuple[str, Search]] = field(default_factory=set)

    def measure(self, cases: Sequence[PlanCase]) -> Iterator[PlanMeasurement]:
        """Measures cases, one after another.

        Args:
            cases: within a family, those with fewer tables first.

        Raises:
            PlanError: our plan is invalid, or TorchRec's planner failed.
        """
        for case in cases:
            seconds, result = _plan(case)
            yield PlanMeasurement(
                family=case.family,
                tables=len(case.uses),
                devices=len(case.topology.devices),
                seconds=seconds,
                gap=result.gap,
                memory_imbalance=result.figures.memory_imbalance,
                torchrec={s: self._torchrec(case, s, result.figures) for s in Search},
            )

    def _torchrec(self, case: PlanCase, search: Search, ours: PlanFigures) -> TorchRecFigures:
        if self.limit_seconds == 0:
            return TorchRecFigures(Outcome.NOT_RUN, reason="left out")
        if (case.family, search) in self._gave_up:
            return TorchRecFigures(Outcome.NOT_RUN, reason="timed out on fewer tables")
        run = run_torchrec(case, search, self.limit_seconds)
        if run.outcome is Outcome.TIMED_OUT:
            self._gave_up.add((case.family, search))
        return _figures(case, run, ours)


def _plan(case: PlanCase) -> tuple[float, PlanResult]:
    seconds: list[float] = []
    while len(seconds) < _REPEATS and sum(seconds) < _REPEAT_BELOW_SECONDS:
        start = time.perf_counter()
        result = make_plan(case.load())
        seconds.append(time.perf_counter() - start)
    check_plan(result.plan, {name: use.table for name, use in case.uses.items()})
    return sorted(seconds)[len(seconds) // 2], result


def _figures(case: PlanCase, run: TorchRecRun, ours: PlanFigures) -> TorchRecFigures:
    if run.plan is None:
        return TorchRecFigures(run.outcome, run.seconds, reason=run.reason)
    theirs = figures_of(run.plan, case.load())
    return TorchRecFigures(
        run.outcome,
        run.seconds,
        time_ratio=theirs.max_seconds / ours.max_seconds,
        memory_imbalance=theirs.memory_imbalance,
    )
