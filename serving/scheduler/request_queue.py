"""One version's queue: the order of its requests, and the work ahead of each.

The request with the earliest key runs first:

    key = min(deadline, arrived + PATIENCE) + priority * PRIORITY_SECONDS

This is earliest deadline first (Liu and Layland, 1973) with two bounds that prevent starvation. A
deadline further away than PATIENCE, or none, counts as PATIENCE. Each priority level is worth a
fixed time of waiting, so that urgent requests cannot hold back others for ever.
"""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from serving.scheduler.cost_table import CostTable

PATIENCE = 1.0
PRIORITY_SECONDS = 0.05
DEFAULT_PRIORITY = 2
LOWEST_PRIORITY = 10
_FOREVER = float("inf")
# Share of a request's time, on arrival, that is kept for writing and sending its answer.
_RESERVED_SHARE = 0.1
_MOST_RESERVED = 0.005
# How fast `least_samples` follows larger requests.
_LEAST_RISES = 0.05


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


def effective_priority(priority: int) -> int:
    """The priority used for a request: 1 to 10. 0 stands for the default."""
    return min(priority, LOWEST_PRIORITY) or DEFAULT_PRIORITY


def key_of(arrived: float, deadline: float, priority: int) -> float:
    """The sort key of a request, earliest first; `priority` is an effective one."""
    return min(deadline, arrived + PATIENCE) + priority * PRIORITY_SECONDS


def latest_end_of(arrived: float, deadline: float) -> float:
    """When a request's batch must end for its answer to be in time."""
    if deadline == _FOREVER:
        return deadline
    return deadline - min(_RESERVED_SHARE * (deadline - arrived), _MOST_RESERVED)


class QueuedRequest:
    """One request from its arrival to its result.

    Attributes:
        queue: of the kind that its batcher needs.
        latest_end: when its batch must end, on the clock of `arrived`.
        priority: from 1, the most urgent, to 10.
        key: orders the queue; `sequence` breaks ties.
        alone_ns: estimated time to run it alone, set when it is queued. Whole nanoseconds, because
            they add to the same sum in any order.
        started: when its batch began; 0 if none has.
        error: why there is no result.
        on_done: called once with the request when it has a result or an error, on the thread that
            caused it. None if a thread waits for the request.
        wake_lock: held while a thread waits for the result; releasing it wakes the thread.
    """

    __slots__ = (
        "alone_ns", "arrived", "deadline", "error", "key", "latest_end", "on_done", "priority",
        "queue", "result", "samples", "sequence", "size_bytes", "started", "state", "wake_lock",
    )  # fmt: skip

    def __init__(
        self,
        queue: Any,
        *,
        samples: int,
        arrived: float,
        deadline: float = _FOREVER,
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
        self.priority = effective_priority(priority)
        self.key = key_of(arrived, deadline, self.priority)
        self.latest_end = latest_end_of(arrived, deadline)
        self.sequence = 0
        self.alone_ns = 0
        self.state = RequestState.NEW
        self.started = 0.0
        self.result: Any = None
        self.error: Exception | None = None
        self.on_done = on_done
        self.wake_lock: threading.Lock | None = None

    @property
    def done(self) -> bool:
        """Whether the request has a result or an error."""
        return self.result is not None or self.error is not None

    def wake(self) -> None:
        """Wakes the waiting thread; repeated calls do no harm."""
        if self.wake_lock is not None:
            try:  # noqa: SIM105 - `suppress` takes as long as the release
                self.wake_lock.release()
            except RuntimeError:
                pass


Request = TypeVar("Request", bound=QueuedRequest)


class Place(NamedTuple):
    """A request's place in its queue's order."""

    key: float
    sequence: int
    request: Any


def _key_of_place(place: Place) -> float:
    return place.key


class RequestQueue(Generic[Request]):
    """One version's queue. Only its batcher changes it.

    Attributes:
        places: of the waiting requests, in order.
        samples: of all waiting requests together.
        least_samples: a moving estimate of the smallest recent request.
        leaving: the version is being unloaded; only requests that began before still use the queue.
    """

    def __init__(self, policy: BatchingPolicy, costs: CostTable) -> None:
        self.policy = policy
        self.costs = costs
        self.samples = 0
        self.leaving = False
        self.least_samples = 1.0
        self.places: list[Place] = []
        self._alone_ns = 0
        # Waiting requests in order of arrival; a batched queue's delay starts with the first.
        self._arrivals: OrderedDict[Request, None] = OrderedDict()

    def __len__(self) -> int:
        """The number of waiting requests."""
        return len(self.places)

    def head_key(self) -> float:
        """The earliest key; infinity if no request waits."""
        return self.places[0].key if self.places else _FOREVER

    def head(self) -> Request:
        """The first request in order."""
        first: Request = self.places[0].request
        return first

    def oldest_arrival(self) -> float:
        """When the request that has waited longest arrived; infinity if no request waits.

        Thread-safe: the list is copied in one step.
        """
        return min((place.request.arrived for place in self.places.copy()), default=_FOREVER)

    def in_order(self) -> Iterator[Request]:
        """The waiting requests, in order."""
        return (place.request for place in self.places)

    def saw(self, samples: int) -> None:
        """Records the size of a request, whether it is queued or not."""
        rise = _LEAST_RISES * (samples - self.least_samples)
        self.least_samples = min(float(samples), self.least_samples + rise)

    def add(self, request: Request) -> None:
        """Queues a request."""
        insort(self.places, Place(request.key, request.sequence, request))
        request.alone_ns = round(self.costs.predicted(request.samples) * 1e9)
        self._alone_ns += request.alone_ns
        self.samples += request.samples
        if self.policy.mode is BatchingMode.BATCHED:
            self._arrivals[request] = None

    def remove(self, request: Request) -> None:
        """Removes a request."""
        at = bisect_left(self.places, (request.key, request.sequence))
        del self.places[at]
        self._alone_ns -= request.alone_ns
        self.samples -= request.samples
        self._arrivals.pop(request, None)

    def due(self, now: float) -> float:
        """When the queue's batch begins if nothing else arrives; infinity if no request waits."""
        if not self.places:
            return _FOREVER
        if self.policy.mode is not BatchingMode.BATCHED or self.samples >= self.policy.max_batch:
            return now
        first = next(iter(self._arrivals))
        # A longer wait would miss the deadline of the first request.
        pressed = self.head().latest_end - self.costs.predicted(self.samples)
        return min(first.arrived + self.policy.max_delay, pressed)

    def work_ahead(self, samples: int, key: float) -> tuple[float, float]:
        """Estimates the work ahead of a new request with these samples and this key.

        Returns:
            Seconds of work before its batch, and seconds of its batch.
        """
        own = self.costs.predicted(samples)
        waiting, alone_ns = self.samples, self._alone_ns
        if not waiting:
            return 0.0, own
        if key < self.places[-1].key:
            ahead = [place.request for place in self.places if place.key <= key]
            waiting = sum(other.samples for other in ahead)
            alone_ns = sum(other.alone_ns for other in ahead)
        alone = alone_ns / 1e9
        if self.policy.mode is BatchingMode.INLINE:
            return alone, own
        before, last = self.full_batches(waiting + samples)
        if self.policy.mode is BatchingMode.BATCHED or before + last < alone + own:
            return before, last
        return alone, own

    def work_before(self, key: float) -> float:
        """Seconds of work here that run before another queue's request with this key."""
        ahead = self.places[: bisect_right(self.places, key, key=_key_of_place)]
        if len(ahead) == len(self):
            samples, alone_ns = self.samples, self._alone_ns
        else:
            samples = sum(place.request.samples for place in ahead)
            alone_ns = sum(place.request.alone_ns for place in ahead)
        alone = alone_ns / 1e9
        if self.policy.mode is BatchingMode.INLINE:
            return alone
        merged = sum(self.full_batches(samples))
        return merged if self.policy.mode is BatchingMode.BATCHED else min(merged, alone)

    def full_batches(self, samples: int) -> tuple[float, float]:
        """Seconds of the full batches that these samples make, and seconds of the remainder."""
        full, rest = divmod(samples, self.policy.max_batch)
        costs = self.costs
        return full * costs.predicted(self.policy.max_batch), costs.predicted(rest) if rest else 0.0
