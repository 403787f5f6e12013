"""The compiled scheduler of a process: which calls run next, and which run together.

Each version has its own queue, and the scheduler picks among the queues. See
`native/scheduler/batcher.h`; `tests/reference/batcher.py` is the reference.
"""

import weakref
from dataclasses import dataclass

from serving.abi import scheduler as abi
from serving.scheduler.batching import LOWEST_PRIORITY
from serving.scheduler.version_queue import VersionQueue


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of waiting calls, over all queues; `size_bytes` counts request messages."""

    requests: int = 1024
    samples: int = 2**20
    size_bytes: int = 256 * 2**20


class Scheduler:
    """Schedules all queues of a process. Thread-safe.

    Every time is in seconds on one clock.

    Attributes:
        address: of the compiled scheduler.
    """

    def __init__(self, *, slots: int = 1, limits: QueueLimits | None = None) -> None:
        """Starts with all slots free.

        Args:
            slots: batches that may run at once, one per core. The queues' `device_slots` replace
                this number where they are set.
        """
        limits = limits or QueueLimits()
        address = abi.scheduler_create(slots, limits.requests, limits.samples, limits.size_bytes)
        weakref.finalize(self, abi.scheduler_destroy, address).atexit = False
        self.address: int = address
        self._counters: abi.Counters = abi.scheduler_counters(address).contents
        # Compiled code refers to them.
        self._queues: list[VersionQueue] = []

    @property
    def requests(self) -> int:
        """Calls that wait."""
        requests: int = self._counters.requests
        return requests

    @property
    def samples(self) -> int:
        """Samples that wait."""
        samples: int = self._counters.samples
        return samples

    @property
    def size_bytes(self) -> int:
        """Bytes of the messages that wait."""
        size_bytes: int = self._counters.size_bytes
        return size_bytes

    @property
    def slots(self) -> int:
        """Batches that may run at once."""
        slots: int = self._counters.slots
        return slots

    @property
    def idle_slots(self) -> int:
        """Free slots; negative after the number of slots was reduced."""
        counters = self._counters
        idle: int = counters.slots - counters.running
        return idle

    def add_queue(self, queue: VersionQueue) -> None:
        """Adds a version's queue."""
        self._queues.append(queue)
        abi.scheduler_add_queue(self.address, queue.address)

    def remove_queue(self, queue: VersionQueue) -> None:
        """Removes a version's queue. Calls that wait in it, or still arrive, are run first."""
        abi.scheduler_remove_queue(self.address, queue.address)
        # From now on the version of its calls keeps it.
        self._queues.remove(queue)

    def deadline_unreachable(
        self, queue: VersionQueue, deadline: float, priority: int, now: float
    ) -> bool:
        """Whether a one-sample call would be refused now because of its deadline.

        Args:
            priority: as the client sent it; 0 means the default.
        """
        return bool(
            abi.scheduler_deadline_unreachable(
                self.address, queue.address, deadline, min(priority, LOWEST_PRIORITY), now
            )
        )

    def backlog(self, now: float) -> float:
        """Seconds to the nearest deadline that is reachable, to 8 ms and at most 2 s."""
        seconds: float = abi.scheduler_backlog(self.address, now)
        return seconds

    def urgent_lead(self, now: float) -> float:
        """Seconds by which an unread call may go before others with its deadline."""
        seconds: float = abi.scheduler_urgent_lead(self.address, now)
        return seconds

    def linger_seconds(self, now: float) -> float:
        """Seconds that the next batch may wait for more calls; 0 or less: do not wait."""
        seconds: float = abi.scheduler_linger_seconds(self.address, now)
        return seconds

    def due(self, now: float) -> float:
        """When a batch can begin if nothing else happens; infinity means never."""
        when: float = abi.scheduler_due(self.address, now)
        return when
