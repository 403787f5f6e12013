"""Runs the batches that the scheduler chooses in its run slots.

The dispatcher has no threads of its own. Threads that bring calls (`work`) run everything that is
ready, so an idle server has no hand-off between socket and kernel (Leader/Followers, Schmidt et
al., 2000).
"""

import ctypes
import threading
from collections.abc import Callable
from time import monotonic
from typing import Generic, Protocol, TypeVar

from serving.scheduler.scheduler import Scheduler
from serving.scheduler.version_queue import VersionQueue

_FOREVER = float("inf")
# After this many yields without a new call, a thread stops yielding.
_YIELDS = 6
# After this many batches in a row that no call joined, only one batch in this many yields.
_LONELY = 16
# Before 3.12, Python's own `os.sched_yield` holds the GIL while it yields.
_sched_yield = ctypes.CDLL(None).sched_yield

Batch = TypeVar("Batch")


class Batches(Protocol[Batch]):
    """Batches as the dispatcher sees them."""

    def begin(self, now: float) -> tuple[Batch | None, bool]:
        """The batch to run now, and if another one is ready; answers calls that come too late."""
        ...

    def run(self, batch: Batch) -> None:
        """Runs a batch, answers its calls, and frees its slot. Raises nothing."""
        ...

    def expire(self, now: float) -> None:
        """Fails waiting calls whose deadlines have passed."""
        ...

    def occupy(self, queue: VersionQueue, now: float) -> Callable[[], None] | None:
        """Takes a free slot while no call waits, and returns what frees it; None: there is none."""
        ...


class Dispatcher(Generic[Batch]):
    """Slots and threads. Thread-safe.

    Attributes:
        on_more: called when another batch is ready and a slot is free.
    """

    def __init__(self, scheduler: Scheduler, batches: Batches[Batch]) -> None:
        self.scheduler, self._batches = scheduler, batches
        self._lock = threading.Lock()
        self._gathering = 0
        # Start time of each running batch, by thread identifier.
        self._began: dict[int, float] = {}
        self.on_more: Callable[[], None] = lambda: None
        # Batches in a row that no call joined.
        self._lonely = 0

    @property
    def slots(self) -> int:
        """Batches that may run at once."""
        return self.scheduler.slots

    @property
    def running_since(self) -> float:
        """Start of the batch that has run longest, monotonic; infinity if none runs."""
        return min(list(self._began.values()), default=_FOREVER)

    @property
    def waiting(self) -> tuple[int, int]:
        """Numbers of waiting calls and samples."""
        return self.scheduler.requests, self.scheduler.samples

    def urgent_lead(self) -> float:
        """Seconds by which an unread call may go before others with its deadline."""
        return self.scheduler.urgent_lead(monotonic())

    def work(self, *, gathered: bool = False) -> bool:
        """Runs a ready batch on this thread, if a slot is free. If True, there may be more.

        Args:
            gathered: the thread has read what came already.
        """
        # Read without the lock: a thread that frees a slot, or gathers, checks the queue after it.
        if self.scheduler.idle_slots <= self._gathering or not (gathered or self._gather()):
            return False
        batch, other = self._batches.begin(monotonic())
        if batch is None:
            return False
        if other:
            # Another slot is free, and this thread is about to be busy.
            self.on_more()
        self._run(lambda: self._batches.run(batch))
        return True

    def run_idle(self, queue: VersionQueue, task: Callable[[], None]) -> bool:
        """Runs a task on this thread and returns True if a slot is idle and nothing waits for it.

        What became ready meanwhile is run on this thread before it returns. `queue` has the costs
        of such tasks, and is not the scheduler's.
        """
        if self.scheduler.idle_slots <= self._gathering:
            return False
        free = self._batches.occupy(queue, monotonic())
        if free is None:
            return False
        try:
            self._run(task)
        finally:
            free()
            while self.work():
                pass
        return True

    def expire(self) -> None:
        """Fails waiting calls whose deadlines have passed."""
        self._batches.expire(monotonic())

    def due(self) -> float:
        """When to call `work` again if nothing arrives before, on the monotonic clock."""
        # Who gathers calls for the idle slots looks at the queue then.
        if self.scheduler.idle_slots <= self._gathering:
            return _FOREVER
        return self.scheduler.due(monotonic())

    def _run(self, task: Callable[[], None]) -> None:
        self._began[threading.get_ident()] = monotonic()
        try:
            task()
        finally:
            del self._began[threading.get_ident()]

    def _gather(self) -> bool:
        """Yields to other threads if more calls would save time; False if others do already."""
        with self._lock:
            if self.scheduler.linger_seconds(monotonic()) <= 0.0:
                return True
            if self._gathering >= self.scheduler.idle_slots:
                return False
            self._gathering += 1
        if self._lonely < _LONELY or self._lonely % _LONELY == 0:
            self._make_way()
        with self._lock:
            self._gathering -= 1
            self._lonely = self._lonely + 1 if self.scheduler.requests < 2 else 0
        return True

    def _make_way(self) -> None:
        """Yields to transport threads that share this core, because they may bring more calls.

        If no other thread can run, this takes a microsecond or two.
        """
        seen, in_vain = self.scheduler.requests, 0
        while in_vain < _YIELDS:
            _sched_yield()
            before, seen = seen, self.scheduler.requests
            in_vain = 0 if seen > before else in_vain + 1
