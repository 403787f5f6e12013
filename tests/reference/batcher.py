"""Decides which requests run next and which run together, as `native/scheduler/batcher.h`."""

from dataclasses import dataclass, field
from itertools import count
from math import isnan
from typing import Any, Generic

from serving.abi import scheduler as abi
from serving.scheduler.batching import LOWEST_PRIORITY
from serving.scheduler.refusals import Refusal, refusal
from serving.scheduler.scheduler import QueueLimits
from tests.reference.batch_forming import batch_from, early_drops, gains_from_batching
from tests.reference.request_queue import (
    DEFAULT_PRIORITY,
    PRIORITY_SECONDS,
    Request,
    RequestQueue,
    key_of,
    latest_end_of,
)

# For this many seconds after a request above the default priority, an unread one may be one too.
_PRIORITY_SECONDS_REMEMBERED = 60.0
# Seconds: backlogs are told up to the first, to a step of the second.
_LONGEST_BACKLOG, _BACKLOG_STEP = 2.0, 2.0**-7
_PASSED, _UNREACHABLE = abi.Refusal.DEADLINE_PASSED, abi.Refusal.DEADLINE_UNREACHABLE
_REQUESTS, _SAMPLES, _BYTES = (
    abi.Refusal.MANY_REQUESTS,
    abi.Refusal.MANY_SAMPLES,
    abi.Refusal.MANY_BYTES,
)


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[Request]):
    """Requests that run together, in order; none: a task that occupies a slot.

    Attributes:
        queue: a `RequestQueue` or a `VersionQueue`.
        started, predicted: seconds; the second is the estimated run time.
    """

    queue: Any
    requests: tuple[Request, ...]
    samples: int
    started: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Taken(Generic[Request]):
    """A batch to run now, requests that cannot be answered in time, and if more can run."""

    batch: Batch[Request] | None
    dropped: list[Request] = field(default_factory=list)
    more: bool = False


class Batcher(Generic[Request]):
    def __init__(self, *, slots: int = 1, limits: QueueLimits | None = None) -> None:
        self.slots = self._cores = slots
        self._limits = limits or QueueLimits()
        self._queues: list[RequestQueue[Request]] = []
        self._running: list[Batch[Request]] = []
        self._sequence = count()
        self.requests = 0
        self.samples = 0
        self.size_bytes = 0
        # Priority and arrival time of the last request above the default priority.
        self._urgent = (DEFAULT_PRIORITY, float("-inf"))

    def add_queue(self, queue: RequestQueue[Request]) -> None:
        self._queues.append(queue)
        self._fit_slots()

    def remove_queue(self, queue: RequestQueue[Request]) -> None:
        queue.leaving = True
        if not len(queue):
            self._queues.remove(queue)
        self._fit_slots()

    def _fit_slots(self) -> None:
        # With more slots than the device holds, batches would wait there instead of growing.
        held = (queue.policy.device_slots for queue in self._queues if not queue.leaving)
        self.slots = max(held, default=0) or self._cores

    @property
    def idle_slots(self) -> int:
        return self.slots - len(self._running)

    def offer(self, request: Request, now: float) -> Refusal | None:
        if request.priority < DEFAULT_PRIORITY:
            self._urgent = (request.priority, now)
        request.queue.saw(request.samples)
        # A deadline that is no number has no place in an order.
        if request.deadline <= now or isnan(request.deadline):
            request.state = abi.State.EXPIRED
            return self._refusal(_PASSED, request, now)
        full = self._full(request) if self.requests else None
        if full is not None:
            return self._refusal(full[0], request, now, *full[1:])
        if request.latest_end != float("inf"):
            end = self._expected_end(request.queue, request.samples, request.key, now)
            if end > request.latest_end and not self._measures(request, now):
                request.state = abi.State.INFEASIBLE
                return self._refusal(_UNREACHABLE, request, now)
        request.sequence = next(self._sequence)
        request.state = abi.State.WAITING
        if request.queue.leaving and not len(request.queue):
            self._queues.append(request.queue)
        request.queue.add(request)
        self._count(request, 1)
        return None

    def deadline_unreachable(
        self, queue: RequestQueue[Request], deadline: float, priority: int, now: float
    ) -> bool:
        if deadline <= now:
            return True
        key = key_of(now, deadline, min(priority, LOWEST_PRIORITY) or DEFAULT_PRIORITY)
        return self._expected_end(queue, 1, key, now) > latest_end_of(now, deadline)

    def deadline_unreachable_anywhere(self, deadline: float, now: float) -> bool:
        # A request that has not been read yet may be as small and as urgent as any recent one.
        key = key_of(now, deadline, self._unread_priority(now))
        latest_end = latest_end_of(now, deadline)
        for queue in self._queues:
            samples = round(queue.least_samples)
            if self._expected_end(queue, samples, key, now) <= latest_end:
                return False
        return bool(self._queues)

    def backlog(self, now: float) -> float:
        if not self.requests:
            return 0.0
        reachable, step = _LONGEST_BACKLOG, _LONGEST_BACKLOG / 2
        while step >= _BACKLOG_STEP:
            if not self.deadline_unreachable_anywhere(now + (reachable - step), now):
                reachable -= step
            step /= 2
        return 0.0 if reachable <= _BACKLOG_STEP else reachable

    def urgent_lead(self, now: float) -> float:
        return (DEFAULT_PRIORITY - self._unread_priority(now)) * PRIORITY_SECONDS

    def take(self, now: float) -> Taken[Request]:
        taken: Taken[Request] = Taken(None)
        while len(self._running) < self.slots:
            # A queue that waits for more requests does not delay the other queues.
            queue = self._next_queue(now)
            if queue is None:
                return taken
            batch = self._take_from(queue, now, taken.dropped)
            if batch is not None:
                self._running.append(batch)
                return Taken(batch, taken.dropped, self.next_request(now) is not None)
        return taken

    def next_request(self, now: float) -> Request | None:
        if len(self._running) >= self.slots:
            return None
        queue = self._next_queue(now)
        return None if queue is None else queue.requests[0]

    def linger_seconds(self, now: float) -> float:
        first = self.next_request(now)
        if first is None or not gains_from_batching(first.queue):
            return 0.0
        seconds: float = first.queue.costs.predicted(first.queue.samples)
        return min(seconds, first.latest_end - now - seconds)

    def due(self, now: float) -> float:
        if len(self._running) >= self.slots:
            return float("inf")
        return min((queue.due(now) for queue in self._queues), default=float("inf"))

    def occupy(self, queue: RequestQueue[Request], now: float) -> Batch[Request] | None:
        if self.requests or self.idle_slots <= 0:
            return None
        self._running.append(Batch(queue, (), 1, now, queue.costs.predicted(1)))
        return self._running[-1]

    def finish(self, batch: Batch[Request], now: float) -> None:
        self._running.remove(batch)
        batch.queue.costs.observe(batch.samples, now - batch.started, now)

    def cancel(self, request: Request) -> bool:
        if request.state is not abi.State.WAITING:
            return False
        self._leave(request, abi.State.CANCELLED)
        return True

    def expire(self, now: float) -> list[Request]:
        late = [r for queue in self._queues for r in queue.requests if r.deadline <= now]
        for request in late:
            self._leave(request, abi.State.EXPIRED)
        return late

    def _unread_priority(self, now: float) -> int:
        priority, seen = self._urgent
        return DEFAULT_PRIORITY if now - seen >= _PRIORITY_SECONDS_REMEMBERED else priority

    def _next_queue(self, now: float) -> RequestQueue[Request] | None:
        first, earliest = None, float("inf")
        for queue in self._queues:
            if queue.due(now) <= now and queue.requests[0].key < earliest:
                first, earliest = queue, queue.requests[0].key
        return first

    def _count(self, request: Request, sign: int) -> None:
        self.requests += sign
        self.samples += sign * request.samples
        self.size_bytes += sign * request.size_bytes

    def _leave(self, request: Request, state: abi.State) -> None:
        request.queue.requests.remove(request)
        request.state = state
        self._count(request, -1)
        if request.queue.leaving and not len(request.queue):
            self._queues.remove(request.queue)

    def _full(self, request: Request) -> tuple[int, int, int] | None:
        # The limits apply only while others wait: a single request may exceed the whole queue.
        limits = self._limits
        if (wanted := self.requests + 1) > limits.requests:
            return _REQUESTS, wanted, limits.requests
        if (wanted := self.samples + request.samples) > limits.samples:
            return _SAMPLES, wanted, limits.samples
        if (wanted := self.size_bytes + request.size_bytes) > limits.size_bytes:
            return _BYTES, wanted, limits.size_bytes
        return None

    def _refusal(
        self, why: int, request: Request, now: float, wanted: int = 0, limit: int = 0
    ) -> Refusal:
        end = self._expected_end(request.queue, request.samples, request.key, now)
        left, expected = request.deadline - now, end - now
        return refusal(abi.Refused(why, wanted, limit), left=left, expected=expected)

    def _expected_end(
        self, queue: RequestQueue[Any], samples: int, key: float, now: float
    ) -> float:
        before, own = queue.work_ahead(samples, key)
        for other in self._queues:
            if other is not queue and other.requests:
                before += other.work_before(key)
        start = now
        if len(self._running) >= self.slots:
            start = max(now, min(batch.started + batch.predicted for batch in self._running))
        return start + before / self.slots + own

    def _measures(self, request: Request, now: float) -> bool:
        # Whether only its own run time refuses it, and no queued request would measure that time.
        costs = request.queue.costs
        alone = (
            not len(request.queue) and now + costs.predicted(request.samples) > request.latest_end
        )
        return alone and costs.is_stale(request.samples, now)

    def _take_from(
        self, queue: RequestQueue[Request], now: float, dropped: list[Request]
    ) -> Batch[Request] | None:
        if self._first(queue, now, dropped) is None:
            return None
        for request in queue.requests[: early_drops(queue, now, self.slots)]:
            self._leave(request, abi.State.INFEASIBLE)
            dropped.append(request)
        size, samples = batch_from(queue, 0, now)
        requests = tuple(queue.requests[:size])
        for request in requests:
            self._leave(request, abi.State.RUNNING)
        return Batch(queue, requests, samples, now, queue.costs.predicted(samples))

    def _first(
        self, queue: RequestQueue[Request], now: float, dropped: list[Request]
    ) -> Request | None:
        while len(queue):
            request = queue.requests[0]
            if request.deadline <= now:
                self._leave(request, abi.State.EXPIRED)
            elif now + queue.costs.predicted(request.samples) > request.latest_end and not (
                queue.costs.is_stale(request.samples, now)
            ):
                self._leave(request, abi.State.INFEASIBLE)
            else:
                return request
            dropped.append(request)
        return None
