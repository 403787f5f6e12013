"""Decides which requests run next and which run together, without threads, clocks or I/O.

offer(request, now)   queues a request, or refuses it: no room, or the deadline cannot be met
take(now)             returns the batch to run now, if a slot is free and a queue is ready
finish(batch, …)      frees the slot and reports the batch's time to the cost table
cancel(request)       removes a request whose client has gone

Each version has its own queue (`request_queue.py`), and the batcher picks among the queues. The
compiled batcher takes the same decisions.
"""

from itertools import count, islice
from math import isnan
from typing import Any, Generic

from serving.scheduler.batcher import Batch, QueueLimits, Taken
from serving.scheduler.queued_request import (
    DEFAULT_PRIORITY,
    LOWEST_PRIORITY,
    RequestState,
)
from serving.scheduler.refusals import deadline_passed, deadline_unreachable, queue_full
from tests.reference.batch_forming import batch_from, early_drops, gains_from_batching
from tests.reference.request_queue import (
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


class Batcher(Generic[Request]):
    """Schedules all queues of a process. Not thread-safe: the caller holds a lock.

    Every time is in seconds on one clock, which the caller chooses.
    """

    def __init__(self, *, slots: int = 1, limits: QueueLimits | None = None) -> None:
        """Starts with all slots free.

        Args:
            slots: batches that may run at once, one per core. The queues' `device_slots` replace
                this number where they are set.
        """
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
        """Adds a version's queue."""
        self._queues.append(queue)
        self._fit_slots()

    def remove_queue(self, queue: RequestQueue[Request]) -> None:
        """Removes a version's queue. Requests that wait in it, or still arrive, are run first."""
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
        """Free slots; negative after the number of slots was reduced."""
        return self.slots - len(self._running)

    def offer(self, request: Request, now: float) -> None:
        """Queues a request.

        Raises:
            DeadlineError: the deadline has passed or cannot be met.
            QueueFullError: there is no room; carries the time after which to retry.
        """
        if request.priority < DEFAULT_PRIORITY:
            self._urgent = (request.priority, now)
        request.queue.saw(request.samples)
        # A deadline that is no number has no place in an order.
        if request.deadline <= now or isnan(request.deadline):
            request.state = RequestState.EXPIRED
            raise deadline_passed()
        if self.requests:
            self._refuse_full(request, now)
        if request.latest_end != float("inf"):
            end = self._expected_end(request.queue, request.samples, request.key, now)
            if end > request.latest_end and not self._measures(request, now):
                request.state = RequestState.INFEASIBLE
                raise deadline_unreachable(left=request.deadline - now, expected=end - now)
        request.sequence = next(self._sequence)
        request.state = RequestState.WAITING
        if request.queue.leaving and not len(request.queue):
            self._queues.append(request.queue)
        request.queue.add(request)
        self._count(request, 1)

    def deadline_unreachable(
        self, queue: RequestQueue[Request], deadline: float, priority: int, now: float
    ) -> bool:
        """Whether `offer` would refuse a one-sample request now because of its deadline.

        Args:
            priority: as the client sent it; 0 means the default.
        """
        if deadline <= now:
            return True
        key = key_of(now, deadline, min(priority, LOWEST_PRIORITY) or DEFAULT_PRIORITY)
        return self._expected_end(queue, 1, key, now) > latest_end_of(now, deadline)

    def deadline_unreachable_anywhere(self, deadline: float, now: float) -> bool:
        """Whether every queue's `offer` would refuse a request that has not been read yet.

        The request is assumed to be as small and as urgent as any recent one. The first small or
        urgent request after many others may therefore be refused although `offer` would accept it.
        """
        key = key_of(now, deadline, self._unread_priority(now))
        latest_end = latest_end_of(now, deadline)
        for queue in self._queues:
            samples = round(queue.least_samples)
            if self._expected_end(queue, samples, key, now) <= latest_end:
                return False
        return bool(self._queues)

    def backlog(self, now: float) -> float:
        """Seconds to the nearest deadline that is reachable, to 8 ms and at most 2 s.

        For nearer ones `deadline_unreachable_anywhere` is true.
        """
        reachable, step = _LONGEST_BACKLOG, _LONGEST_BACKLOG / 2
        while step >= _BACKLOG_STEP:
            if not self.deadline_unreachable_anywhere(now + (reachable - step), now):
                reachable -= step
            step /= 2
        return 0.0 if reachable <= _BACKLOG_STEP else reachable

    def urgent_lead(self, now: float) -> float:
        """Seconds by which an unread request may go before others with its deadline."""
        return (DEFAULT_PRIORITY - self._unread_priority(now)) * PRIORITY_SECONDS

    def take(self, now: float) -> Taken[Request]:
        """Takes the batch to run now, and drops requests that cannot be answered in time."""
        taken: Taken[Request] = Taken(None)
        while len(self._running) < self.slots:
            # A queue that waits for more requests does not delay the other queues.
            queue = self._next_queue(now)
            if queue is None:
                return taken
            batch = self._take_from(queue, now, taken.dropped)
            if batch is not None:
                self._running.append(batch)
                return Taken(batch, taken.dropped)
        return taken

    def next_request(self, now: float) -> Request | None:
        """The first request of the next batch; None if no slot is free or no queue is ready."""
        if len(self._running) >= self.slots:
            return None
        queue = self._next_queue(now)
        return None if queue is None else queue.head()

    def linger_seconds(self, now: float) -> float:
        """Seconds that the next batch may wait for more requests; 0 or less: do not wait.

        The wait is at most the batch's own run time, and leaves time to meet its deadline.
        """
        first = self.next_request(now)
        if first is None or not gains_from_batching(first.queue):
            return 0.0
        seconds: float = first.queue.costs.predicted(first.queue.samples)
        return min(seconds, first.latest_end - now - seconds)

    def due(self, now: float) -> float:
        """When to call `take` again if nothing else happens; infinity means never."""
        if len(self._running) >= self.slots:
            return float("inf")
        return min((queue.due(now) for queue in self._queues), default=float("inf"))

    def finish(
        self, batch: Batch[Request], *, seconds: float, now: float, cpu_seconds: float | None = None
    ) -> None:
        """Frees a batch's slot and records its run time.

        Args:
            seconds: the batch's elapsed time.
            cpu_seconds: processor time of the batch's thread; None means all of `seconds`.
        """
        self._running.remove(batch)
        batch.queue.costs.observe(batch.samples, seconds, now, cpu_seconds=cpu_seconds)

    def cancel(self, request: Request) -> bool:
        """Removes a request from its queue.

        Returns:
            Whether it was waiting; False if it is running or has already left.
        """
        if request.state is not RequestState.WAITING:
            return False
        self._leave(request, RequestState.CANCELLED)
        return True

    def expire(self, now: float) -> list[Request]:
        """Removes and returns every request whose deadline has passed."""
        late = [r for queue in self._queues for r in queue.in_order() if r.deadline <= now]
        for request in late:
            self._leave(request, RequestState.EXPIRED)
        return late

    def _unread_priority(self, now: float) -> int:
        priority, seen = self._urgent
        return DEFAULT_PRIORITY if now - seen >= _PRIORITY_SECONDS_REMEMBERED else priority

    def _next_queue(self, now: float) -> RequestQueue[Request] | None:
        """The ready queue with the earliest key; its batch runs next."""
        first, earliest = None, float("inf")
        for queue in self._queues:
            if queue.places and queue.due(now) <= now and queue.head_key() < earliest:
                first, earliest = queue, queue.head_key()
        return first

    def _count(self, request: Request, sign: int) -> None:
        self.requests += sign
        self.samples += sign * request.samples
        self.size_bytes += sign * request.size_bytes

    def _leave(self, request: Request, state: RequestState) -> None:
        request.queue.remove(request)
        request.state = state
        self._count(request, -1)
        if request.queue.leaving and not len(request.queue):
            self._queues.remove(request.queue)

    def _refuse_full(self, request: Request, now: float) -> None:
        # The limits apply only while others wait: a single request may exceed the whole queue.
        limits = self._limits
        if (wanted := self.requests + 1) > limits.requests:
            what, limit = "requests", limits.requests
        elif (wanted := self.samples + request.samples) > limits.samples:
            what, limit = "samples", limits.samples
        elif (wanted := self.size_bytes + request.size_bytes) > limits.size_bytes:
            what, limit = "bytes", limits.size_bytes
        else:
            return
        end = self._expected_end(request.queue, request.samples, request.key, now)
        raise queue_full(what, wanted=wanted, limit=limit, expected=end - now)

    def _expected_end(
        self, queue: RequestQueue[Any], samples: int, key: float, now: float
    ) -> float:
        before, own = queue.work_ahead(samples, key)
        for other in self._queues:
            if other is not queue and other.places:
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
        for request in list(islice(queue.in_order(), early_drops(queue, now, self.slots))):
            self._leave(request, RequestState.INFEASIBLE)
            dropped.append(request)
        size, samples = batch_from(queue, 0, now)
        requests = tuple(islice(queue.in_order(), size))
        for request in requests:
            self._leave(request, RequestState.RUNNING)
        return Batch(queue, requests, samples, now, queue.costs.predicted(samples))

    def _first(
        self, queue: RequestQueue[Request], now: float, dropped: list[Request]
    ) -> Request | None:
        while len(queue):
            request = queue.head()
            if request.deadline <= now:
                self._leave(request, RequestState.EXPIRED)
            elif now + queue.costs.predicted(request.samples) > request.latest_end and not (
                queue.costs.is_stale(request.samples, now)
            ):
                self._leave(request, RequestState.INFEASIBLE)
            else:
                return request
            dropped.append(request)
        return None
