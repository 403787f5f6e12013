"""The same requests at the same times, in runs that differ in the work beside them.

Requests of all rounds are pooled: a percentile of one round depends on a few slow requests, and on
other work of the machine. Windows from which the hypervisor took processor time in one run are left
out in all, each with the one after it, in which requests may still be waiting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.releases.stolen_time import StolenTime
from serving.bench.load.result import LoadResult
from serving.bench.servers.serve import percentiles_ms

WINDOW_SECONDS = 0.25
# Of all cores, in a window. The kernel counts in 10 ms.
MOST_STOLEN_SECONDS = 0.010


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a schedule, and the machine's stolen time meanwhile."""

    result: LoadResult
    stolen: StolenTime

    def latencies(self, first: float, last: float) -> NDArray[np.float64]:
        """Latencies in seconds of answered requests due between two times."""
        at = slice(*np.searchsorted(self.result.scheduled, (first, last)))
        found: NDArray[np.float64] = self.result.latency[at][self.result.codes[at] == 0]
        return found

    def stolen_within(self, first: float, last: float) -> float:
        """Seconds that the hypervisor took of all cores between two times of the schedule."""
        return self.stolen.between(self.result.began + first, self.result.began + last)


@dataclass(frozen=True, slots=True)
class SameRequests:
    """Runs of one schedule by the work beside them; requests due from `first` to `last` count."""

    runs: Mapping[str, Run]
    first: float
    last: float

    def windows(self) -> list[tuple[float, float]]:
        """All windows of the schedule that count."""
        edges = [*np.arange(self.first, self.last, WINDOW_SECONDS).tolist(), self.last]
        return list(pairwise(edges))

    def whole_windows(self) -> list[tuple[float, float]]:
        """Windows in which all runs had the machine."""
        kept, was_short = [], False
        for window in self.windows():
            is_short = any(
                run.stolen_within(*window) > MOST_STOLEN_SECONDS for run in self.runs.values()
            )
            if not (is_short or was_short):
                kept.append(window)
            was_short = is_short
        return kept


@dataclass(frozen=True, slots=True)
class Pooled:
    """Numbers of windows and requests that count, and percentiles by the work beside them."""

    windows: int
    left_out: int
    requests: int
    latency_ms: dict[str, dict[str, float]]

    def p99_ratio(self, one: str, other: str) -> float | None:
        """The p99 of one run over that of another; None if no window counts."""
        if not self.requests:
            return None
        return self.latency_ms[one]["p99"] / self.latency_ms[other]["p99"]


def pooled(rounds: Sequence[SameRequests]) -> Pooled:
    """Pool the requests of all rounds, which have the same runs."""
    kept = [(one, one.whole_windows()) for one in rounds]
    latencies = {
        name: np.concatenate(
            [one.runs[name].latencies(*window) for one, windows in kept for window in windows]
            or [np.empty(0)]
        )
        for name in rounds[0].runs
    }
    windows = sum(len(one.windows()) for one in rounds)
    return Pooled(
        windows=windows,
        left_out=windows - sum(len(found) for _, found in kept),
        requests=min(map(len, latencies.values())),
        latency_ms={name: percentiles_ms(found) for name, found in latencies.items()},
    )
