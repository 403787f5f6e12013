"""Signs of life, by which a server's first process sees that the others go on.

process      a thread of its own counts up while the process gets on
first one    adds up the time that it was itself awake since each count last changed

A machine that sleeps, or a server that is paused as a whole, makes nobody look dead: the time in
which the first process did not run either is left out.
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
        """Begins with zeros.

        Args:
            processes: how many; the last ones may be named by negative numbers.
        """
        self._processes = processes
        self._memory = mmap.mmap(-1, _COUNT.size * processes)

    def count(self, number: int) -> int:
        """How often a process has given a sign."""
        found: int = _COUNT.unpack_from(self._memory, self._place(number))[0]
        return found

    def start(self, number: int, goes_on: Callable[[], bool]) -> None:
        """Gives signs from now on, on a thread of this process.

        Args:
            number: of this process.
            goes_on: asked before each; it must not wait for anybody.
        """

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
    """How long each process has given no sign, in the time of whoever looks."""

    def __init__(self, longest_step: float) -> None:
        """Begins with nobody known.

        Args:
            longest_step: seconds that one look may add: whoever looks late has slept.
        """
        self._longest_step = longest_step
        self._counts: dict[int, int] = {}
        self._seconds: dict[int, float] = {}
        self._looked = 0.0

    def look(self, counts: Mapping[int, int], now: float) -> Mapping[int, float]:
        """Takes the counts in.

        Args:
            counts: by process; one that comes, or comes again, has just given a sign.
            now: seconds of a clock.

        Returns:
            The seconds without a sign, by process.
        """
        step = min(now - self._looked, self._longest_step)
        self._seconds = {
            number: self._seconds[number] + step if self._counts.get(number) == count else 0.0
            for number, count in counts.items()
        }
        self._counts, self._looked = dict(counts), now
        return self._seconds

    def forget(self, number: int) -> None:
        """Takes a process for one that has just come."""
        self._counts.pop(number, None)
