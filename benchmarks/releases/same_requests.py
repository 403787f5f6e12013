"""The same requests at the same times, in runs that differ in the work beside them.

Requests of all rounds are pooled: a percentile of one round depends on a few slow requests, and on
other work of the machine. Windows from which the hypervisor took processor time in one run are left
out in all, each with the one after it, in which requests may still be waiting.
"""

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Self

import numpy as np
from numpy.typing import NDArray

from serving.bench.load.result import LoadResult
from serving.bench.servers.serve import percentiles_ms

WINDOW_SECONDS = 0.25
# Of all cores, in a window. The kernel counts in 10 ms.
MOST_STOLEN_SECONDS = 0.010
_SAMPLE_SECONDS = 0.05
_STEAL = 8  # field of a line of /proc/stat (proc(5))
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class StolenTime:
    """Samples the stolen time of some cores, from `with` to its end."""

    def __init__(self, cpus: set[int], file: Path = Path("/proc/stat")) -> None:
        self._names = {f"cpu{cpu}" for cpu in cpus}
        self._file = file
        self._times: list[float] = []
        self._ticks: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.sample(monotonic())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample(monotonic())

    def sample(self, now: float) -> None:
        lines = (line.split() for line in self._file.read_text().splitlines())
        ticks = sum(int(fields[_STEAL]) for fields in lines if fields[0] in self._names)
        self._times.append(now)
        self._ticks.append(ticks)

    def between(self, first: float, last: float) -> float:
        """Stolen seconds of all these cores, from the sample before to the one after."""
        begin = max(0, bisect_right(self._times, first) - 1)
        end = min(len(self._times) - 1, bisect_left(self._times, last))
        return (self._ticks[end] - self._ticks[begin]) / _CLOCK_TICKS

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self.sample(monotonic())


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
