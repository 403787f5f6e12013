"""Requests that have reached the process, but not yet the queue.

On a core that is busy with transport work, the request that is read first would run alone, while
the others wait behind it to be read. Whoever is about to run a batch that would gain by company
waits for those that are on their way: they are known, so there is nothing to guess, and where
nobody is on the way nobody waits.
"""

import threading


class Arrivals:
    """Counts requests between the transport and the queue. Any thread may call."""

    def __init__(self) -> None:
        """Begins at none."""
        self._lock = threading.Lock()
        self._coming = 0
        # Of those, how many were waited for in vain: a client that sends slowly, or no free thread.
        self._late = 0
        self._waiting: list[threading.Lock] = []
        self._own = threading.local()

    @property
    def coming(self) -> int:
        """Requests that should be in the queue soon."""
        return self._coming - self._late

    def announce(self, count: int = 1) -> None:
        """Some have come to the transport."""
        with self._lock:
            self._coming += count

    def begin(self) -> None:
        """One of those announced is on this thread now; `settle` without an argument ends it."""
        self._own.begun = True

    def settle_own(self) -> None:
        """The one that began on this thread is queued, or needs no queue. Again: does nothing."""
        if getattr(self._own, "begun", False):
            self._own.begun = False
            self.settle()

    def settle(self) -> None:
        """One of those announced is queued, or needs no queue."""
        with self._lock:
            self._coming -= 1
            self._late = min(self._late, self._coming)
            if self._coming > self._late:
                return
            waiting, self._waiting = self._waiting, []
        for lock in waiting:
            lock.release()

    def wait(self, seconds: float) -> None:
        """Waits until nobody is on the way.

        Args:
            seconds: at most; whoever has not come by then is not waited for again.
        """
        with self._lock:
            if self._coming <= self._late:
                return
            quiet = threading.Lock()
            quiet.acquire()
            self._waiting.append(quiet)
        if not quiet.acquire(timeout=seconds):
            with self._lock:
                self._late = self._coming
                if quiet in self._waiting:
                    self._waiting.remove(quiet)
