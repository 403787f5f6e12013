"""Processor time that the hypervisor took during a measurement."""

import os
import threading
from bisect import bisect_left, bisect_right
from pathlib import Path
from time import monotonic
from types import TracebackType

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

    def __enter__(self) -> "StolenTime":
        self.sample(monotonic())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.sample(monotonic())

    def sample(self, now: float) -> None:
        """Read the counts."""
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
