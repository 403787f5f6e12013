"""One version's queue: the order of its requests, and the work ahead of each.

The request with the earliest key runs first:

    key = min(deadline, arrived + PATIENCE) + priority * PRIORITY_SECONDS

This is earliest deadline first (Liu and Layland, 1973) with two bounds that prevent starvation. A
deadline further away than PATIENCE, or none, counts as PATIENCE. Each priority level is worth a
fixed time of waiting, so that urgent requests cannot hold back others for ever.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from serving.scheduler.queued_request import BatchingMode, BatchingPolicy, QueuedRequest
from tests.reference.cost_table import CostTable

PATIENCE = 1.0
PRIORITY_SECONDS = 0.05
_FOREVER = float("inf")
# Share of a request's time, on arrival, that is kept for writing and sending its answer.
_RESERVED_SHARE = 0.1
_MOST_RESERVED = 0.005
# How fast `least_samples` follows larger requests.
_LEAST_RISES = 0.05


def key_of(arrived: float, deadline: float, priority: int) -> float:
    """Sort key of a request, earliest first; `priority` is an effective one."""
    return min(deadline, arrived + PATIENCE) + priority * PRIORITY_SECONDS


def latest_end_of(arrived: float, deadline: float) -> float:
    """When a request's batch must end for its answer to be in time."""
    if deadline == _FOREVER:
        return deadline
    return deadline - min(_RESERVED_SHARE * (deadline - arrived), _MOST_RESERVED)


class OrderedRequest(QueuedRequest):
    """A request in the reference's queue.

    Attributes:
        key: orders the queue; `sequence` breaks ties.
        latest_end: when its batch must end, on the clock of `arrived`.
        alone_ns: estimated time to run it alone, set when it is queued. Whole nanoseconds, because
            they add to the same sum in any order.
    """

    __slots__ = ("alone_ns", "key", "latest_end", "sequence")

    def __init__(self, queue: Any, *, samples: int, arrived: float, **fields: Any) -> None:
        super().__init__(queue, samples=samples, arrived=arrived, **fields)
        self.key = key_of(arrived, self.deadline, self.priority)
        self.latest_end = latest_end_of(arrived, self.deadline)
        self.sequence = 0
        self.alone_ns = 0


Request = TypeVar("Request", bound=OrderedRequest)


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
        """Number of waiting requests."""
        return len(self.places)

    def head_key(self) -> float:
        """The earliest key; infinity if no request waits."""
        return self.places[0].key if self.places else _FOREVER

    def head(self) -> Request:
        """The first request in order."""
        first: Request = self.places[0].request
        return first

    def oldest_arrival(self) -> float:
        """Earliest arrival of the waiting requests; infinity if none waits.

        Thread-safe: the list is copied in one step.
        """
        return min((place.request.arrived for place in self.places.copy()), default=_FOREVER)

    def in_order(self) -> Iterator[Request]:
        """Waiting requests, in order."""
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
        """Estimates seconds of work before the batch of a new request, and of its batch."""
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
        """Seconds of full batches of these samples, and of the remainder."""
        full, rest = divmod(samples, self.policy.max_batch)
        costs = self.costs
        return full * costs.predicted(self.policy.max_batch), costs.predicted(rest) if rest else 0.0
