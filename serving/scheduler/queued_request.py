"""A request in a queue, and the policy that its queue batches by."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

DEFAULT_PRIORITY = 2
LOWEST_PRIORITY = 10


class BatchingMode(Enum):
    """How a queue's requests are combined into batches."""

    INLINE = "inline"  # never: each request runs by itself
    BATCHED = "batched"  # always: requests wait up to the delay for more
    AUTO = "auto"  # those that arrived while all slots were busy, as far as batching is worth it


class RequestState(Enum):
    """A request's state; it only moves down this list."""

    NEW = 0
    WAITING = 1
    RUNNING = 2
    EXPIRED = 3
    INFEASIBLE = 4
    CANCELLED = 5


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """How one queue batches.

    Attributes:
        max_batch: the most samples in a batch of several requests.
        max_delay: seconds that a batched queue waits for more requests.
        by_clock: a batch's cost is its elapsed time, because it waits for devices. Otherwise the
            cost is its thread's processor time.
        device_slots: batches that the devices hold at once; 0 if the queue runs on the host.
    """

    mode: BatchingMode = BatchingMode.AUTO
    max_batch: int = 1024
    max_delay: float = 0.001
    by_clock: bool = False
    device_slots: int = 0


class QueuedRequest:
    """One request from its arrival to its result.

    Attributes:
        queue: a `VersionQueue`.
        priority: from 1, the most urgent, to 10.
        handle: of the compiled scheduler, while it waits.
        started: when its batch began; 0 if none has.
        on_done: called once with the request when it has a result or an error, on the thread that
            caused it.
    """

    __slots__ = (
        "arrived", "deadline", "error", "handle", "on_done", "priority", "queue", "result",
        "samples", "size_bytes", "started", "state",
    )  # fmt: skip

    def __init__(
        self,
        queue: Any,
        *,
        samples: int,
        arrived: float,
        deadline: float = float("inf"),
        size_bytes: int = 0,
        priority: int = 0,
        on_done: Callable[[Any], None] | None = None,
    ) -> None:
        """Describes a request that is not queued yet.

        Args:
            arrived: in seconds, on any clock.
            deadline: on the same clock; infinity if there is none.
            size_bytes: of the request's message.
            priority: 1 to 10; 0 means the default.
        """
        self.queue = queue
        self.samples = samples
        self.arrived = arrived
        self.deadline = deadline
        self.size_bytes = size_bytes
        self.priority = min(priority, LOWEST_PRIORITY) or DEFAULT_PRIORITY
        self.handle = 0
        self.state = RequestState.NEW
        self.started = 0.0
        self.result: Any = None
        self.error: Exception | None = None
        self.on_done = on_done

    @property
    def done(self) -> bool:
        """True once the request has a result or an error."""
        return self.result is not None or self.error is not None


Request = TypeVar("Request", bound=QueuedRequest)
