"""Requests that have reached the process but not yet the queue.

On a core that is busy with transport work, the first request read would run alone while others wait
to be read. A thread about to run a batch that would gain from more requests waits for those in
transit. Their number is known, not estimated, and no thread waits if there are none.
"""

import threading


class Arrivals:
    """Counts requests between the transport and the queue. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_transit = 0
        # Of those, the requests that came too late: a slow client, or no free thread.
        self._late = 0
        self._waiting: list[threading.Lock] = []
        self._own = threading.local()

    @property
    def in_transit(self) -> int:
        """Requests that should reach the queue soon."""
        return self._in_transit - self._late

    def received(self, count: int = 1) -> None:
        """Counts requests that the transport has received."""
        with self._lock:
            self._in_transit += count

    def begin(self) -> None:
        """Marks that this thread handles one received request, until `own_queued`."""
        self._own.begun = True

    def own_queued(self) -> None:
        """Counts this thread's request as queued, or as needing no queue. Repeats do nothing."""
        if getattr(self._own, "begun", False):
            self._own.begun = False
            self.queued()

    def queued(self) -> None:
        """Counts one received request as queued, or as needing no queue."""
        with self._lock:
            self._in_transit -= 1
            self._late = min(self._late, self._in_transit)
            if self._in_transit > self._late:
                return
            waiting, self._waiting = self._waiting, []
        for lock in waiting:
            lock.release()

    def wait(self, seconds: float) -> None:
        """Waits until no request is in transit.

        Args:
            seconds: the longest wait; requests that take longer are not waited for again.
        """
        with self._lock:
            if self._in_transit <= self._late:
                return
            quiet = threading.Lock()
            quiet.acquire()
            self._waiting.append(quiet)
        if not quiet.acquire(timeout=seconds):
            with self._lock:
                self._late = self._in_transit
                if quiet in self._waiting:
                    self._waiting.remove(quiet)
