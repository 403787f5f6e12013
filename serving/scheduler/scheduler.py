"""The scheduler of a process: compiled, or the reference where no compiler built it."""

from collections.abc import Mapping
from typing import Any, Protocol

from serving.scheduler.batcher import Batch, QueueLimits, Taken
from serving.scheduler.compiled_batcher import CompiledBatcher
from serving.scheduler.compiled_queue import CompiledQueue
from serving.scheduler.request_queue import BatchingPolicy, Request
from serving.scheduler.version_queue import VersionQueue


class Scheduler(Protocol[Request]):
    """Schedules all queues of a process; `Batcher` says what each method does.

    Not thread-safe: the caller holds a lock. The properties may be read at any time.
    """

    @property
    def slots(self) -> int:
        """Batches that may run at once."""

    @property
    def idle_slots(self) -> int:
        """Free slots; negative after the number of slots was reduced."""

    @property
    def requests(self) -> int:
        """Requests that wait."""

    @property
    def samples(self) -> int:
        """Samples that wait."""

    def add_queue(self, queue: Any) -> None:
        """Adds a version's queue, of this scheduler's kind."""

    def remove_queue(self, queue: Any) -> None:
        """Removes a version's queue. Requests that wait in it, or still arrive, are run first."""

    def offer(self, request: Request, now: float) -> None:
        """Queues a request, or raises `DeadlineError` or `QueueFullError`."""

    def deadline_unreachable(self, queue: Any, deadline: float, priority: int, now: float) -> bool:
        """Whether `offer` would refuse a one-sample request now because of its deadline."""

    def deadline_unreachable_anywhere(
        self, deadline: float, now: float, in_transit: int = 0
    ) -> bool:
        """Whether every queue's `offer` would refuse a request that has not been read yet."""

    def backlog(self, now: float) -> float:
        """Seconds to the nearest deadline that is reachable, to 8 ms and at most 2 s."""

    def urgent_lead(self, now: float) -> float:
        """Seconds by which an unread request may go before others with its deadline."""

    def take(self, now: float) -> Taken[Request]:
        """Takes the batch to run now, and drops requests that cannot be answered in time."""

    def next_request(self, now: float) -> Request | None:
        """The first request of the next batch; None if no slot is free or no queue is ready."""

    def linger_seconds(self, now: float) -> float:
        """Seconds that the next batch may wait for requests in transit; 0 or less: do not wait."""

    def due(self, now: float) -> float:
        """When to call `take` again if nothing else happens; infinity means never."""

    def finish(
        self, batch: Batch[Request], *, seconds: float, now: float, cpu_seconds: float | None = None
    ) -> None:
        """Frees a batch's slot and records its run time."""

    def cancel(self, request: Request) -> bool:
        """Removes a request from its queue, if it waits there."""

    def expire(self, now: float) -> list[Request]:
        """Removes and returns every request whose deadline has passed."""


def new_scheduler(*, slots: int, limits: QueueLimits | None = None) -> Scheduler[Any]:
    """A scheduler for queues of `new_queue`, with all slots free."""
    return CompiledBatcher(slots=slots, limits=limits)


def new_queue(policy: BatchingPolicy, measured: Mapping[int, float]) -> VersionQueue:
    """An empty queue for a scheduler of `new_scheduler`.

    Args:
        measured: seconds of a batch by its samples, timed at warm-up.
    """
    return CompiledQueue(policy, measured)
