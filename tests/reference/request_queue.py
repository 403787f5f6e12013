"""One version's queue: the order of its requests, and the work ahead of each.

The request with the earliest key runs first:

    key = min(deadline, arrived + PATIENCE) + priority * PRIORITY_SECONDS

This is earliest deadline first (Liu and Layland, 1973) with two bounds that prevent starvation. A
deadline further away than PATIENCE, or none, counts as PATIENCE. Each priority level is worth a
fixed time of waiting, so that urgent requests cannot hold back others for ever.
"""

from bisect import insort
from typing import Any, Generic, TypeVar

from serving.abi.scheduler import State
from serving.scheduler.batching import LOWEST_PRIORITY, BatchingMode, BatchingPolicy
from tests.reference.cost_table import CostTable

PATIENCE = 1.0
PRIORITY_SECONDS = 0.05
DEFAULT_PRIORITY = 2
_FOREVER = float("inf")
# Share of a request's time, on arrival, that is kept for writing and sending its answer.
_RESERVED_SHARE = 0.1
_MOST_RESERVED = 0.005
# How fast `least_samples` follows larger requests.
_LEAST_RISES = 0.05


def key_of(arrived: float, deadline: float, priority: int) -> float:
    return min(deadline, arrived + PATIENCE) + priority * PRIORITY_SECONDS


def latest_end_of(arrived: float, deadline: float) -> float:
    """When a request's batch must end for its answer to be in time."""
    if deadline == _FOREVER:
        return deadline
    return deadline - min(_RESERVED_SHARE * (deadline - arrived), _MOST_RESERVED)


class QueuedRequest:
    """A request in a queue of the reference or of compiled code; `sequence` breaks ties of `key`.

    `alone_ns` is the estimated time to run it alone, set when it is queued: whole nanoseconds,
    because they add to the same sum in any order.
    """

    def __init__(
        self,
        queue: Any,
        *,
        samples: int,
        arrived: float,
        deadline: float = _FOREVER,
        size_bytes: int = 0,
        priority: int = 0,
    ) -> None:
        """Describes a request that is not queued yet; the priority 0 means the default."""
        self.queue = queue
        self.samples = samples
        self.arrived = arrived
        self.deadline = deadline
        self.size_bytes = size_bytes
        self.priority = min(priority, LOWEST_PRIORITY) or DEFAULT_PRIORITY
        self.state = State.NEW
        self.key = key_of(arrived, deadline, self.priority)
        self.latest_end = latest_end_of(arrived, deadline)
        self.sequence = 0
        self.alone_ns = 0


Request = TypeVar("Request", bound=QueuedRequest)


class RequestQueue(Generic[Request]):
    """One version's queue. Only its batcher changes it.

    Attributes:
        requests: waiting, in order.
        least_samples: a moving estimate of the smallest recent request.
        leaving: the version is being unloaded; only requests that began before still use the queue.
    """

    def __init__(self, policy: BatchingPolicy, costs: CostTable) -> None:
        self.policy = policy
        self.costs = costs
        self.leaving = False
        self.least_samples = 1.0
        self.requests: list[Request] = []

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def samples(self) -> int:
        return sum(request.samples for request in self.requests)

    def oldest_arrival(self) -> float:
        return min((request.arrived for request in self.requests), default=_FOREVER)

    def saw(self, samples: int) -> None:
        rise = _LEAST_RISES * (samples - self.least_samples)
        self.least_samples = min(float(samples), self.least_samples + rise)

    def add(self, request: Request) -> None:
        request.alone_ns = round(self.costs.predicted(request.samples) * 1e9)
        insort(self.requests, request, key=lambda other: (other.key, other.sequence))

    def due(self, now: float) -> float:
        if not self.requests:
            return _FOREVER
        if self.policy.mode is not BatchingMode.BATCHED or self.samples >= self.policy.max_batch:
            return now
        first = min(self.requests, key=lambda request: request.sequence)
        # A longer wait would miss the deadline of the first request.
        pressed = self.requests[0].latest_end - self.costs.predicted(self.samples)
        return min(first.arrived + self.policy.max_delay, pressed)

    def work_ahead(self, samples: int, key: float) -> tuple[float, float]:
        own = self.costs.predicted(samples)
        if not self.requests:
            return 0.0, own
        waiting, alone = self._ahead(key)
        if self.policy.mode is BatchingMode.INLINE:
            return alone, own
        before, last = self.full_batches(waiting + samples)
        if self.policy.mode is BatchingMode.BATCHED or before + last < alone + own:
            return before, last
        return alone, own

    def work_before(self, key: float) -> float:
        samples, alone = self._ahead(key)
        if self.policy.mode is BatchingMode.INLINE:
            return alone
        merged = sum(self.full_batches(samples))
        return merged if self.policy.mode is BatchingMode.BATCHED else min(merged, alone)

    def _ahead(self, key: float) -> tuple[int, float]:
        # Samples of the requests that run before a key, and their seconds one by one.
        ahead = [request for request in self.requests if request.key <= key]
        alone_ns = sum(request.alone_ns for request in ahead)
        return sum(request.samples for request in ahead), alone_ns / 1e9

    def full_batches(self, samples: int) -> tuple[float, float]:
        full, rest = divmod(samples, self.policy.max_batch)
        costs = self.costs
        return full * costs.predicted(self.policy.max_batch), costs.predicted(rest) if rest else 0.0
