"""Heartbeats, by which a server's first process detects processes that hang.

process        a separate thread increments a count while the process makes progress
first process  adds up the time that it was itself awake since each count last changed

Time in which the first process did not run itself is left out. A machine that sleeps, or a paused
server, makes no process look dead.
"""

import mmap
import signal
import struct
import threading
from collections.abc import Callable, Mapping
from time import sleep

_COUNT = struct.Struct("<Q")
_BEAT_SECONDS = 0.1


class Heartbeats:
    """A count for each process, in anonymous shared memory that forks inherit."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._memory = mmap.mmap(-1, _COUNT.size * processes)

    def count(self, number: int) -> int:
        """Heartbeats of a process."""
        found: int = _COUNT.unpack_from(self._memory, self._place(number))[0]
        return found

    def start(self, number: int, goes_on: Callable[[], bool]) -> None:
        """Start a thread that counts up for this process while `goes_on`, which must not block."""

        def run() -> None:
            while True:
                if goes_on():
                    _COUNT.pack_into(self._memory, self._place(number), self.count(number) + 1)
                sleep(_BEAT_SECONDS)

        # Signals are for the main thread, which may not have blocked or handled its own yet.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            threading.Thread(target=run, name="heartbeat", daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _place(self, number: int) -> int:
        return _COUNT.size * (number % self._processes)


class Silence:
    """Time without a heartbeat of each process, measured while the observer runs."""

    def __init__(self, longest_step: float) -> None:
        """Know no process; a look adds at most `longest_step` s, since a late observer slept."""
        self._longest_step = longest_step
        self._counts: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._looked = 0.0

    def look(self, counts: Mapping[int, int], now: float) -> Mapping[int, float]:
        """Update, and return seconds without a heartbeat; new processes count as alive."""
        step = min(now - self._looked, self._longest_step)
        self._seconds = {
            number: self._seconds[number] + step if self._counts.get(number) == count else 0.0
            for number, count in counts.items()
        }
        self._counts, self._looked = dict(counts), now
        return self._seconds

    def forget(self, number: int) -> None:
        """Treat a process as new."""
        self._counts.pop(number, None)
