"""Decides which requests run next and which run together, in compiled code.

    offer(request, now)   queues a request, or refuses it: no room, or the deadline cannot be met
    take(now)             returns the batch to run now, if a slot is free and a queue is ready
    finish(batch, …)      frees the slot and reports the batch's time to the cost table
    cancel(request)       removes a request whose client has gone

Each version has its own queue, and the batcher picks among the queues. Requests stay Python objects
here; compiled code knows each by a handle while it waits.
"""

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Protocol

from serving.scheduler.compiled_library import LIBRARY, Counters, Handles, Refused
from serving.scheduler.queued_request import LOWEST_PRIORITY, Request, RequestState
from serving.scheduler.refusals import deadline_passed, deadline_unreachable, queue_full
from serving.scheduler.version_queue import VersionQueue
from sharded_infer.errors import InternalError

_STATES = list(RequestState)
# `Refusal` of native/scheduler/decision.h; above these, what is limited.
_PASSED, _UNREACHABLE = 1, 2
_LIMITED = {3: "requests", 4: "samples", 5: "bytes"}
_HANDLE_BYTES = 8


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of waiting requests, over all queues; `size_bytes` counts request messages."""

    requests: int = 1024
    samples: int = 2**20
    size_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[Request]):
    """Requests that run together, in queue order.

    Attributes:
        started: when the batch was taken, in seconds on the batcher's clock.
        predicted: estimated run time, in seconds.
    """

    queue: VersionQueue
    requests: tuple[Request, ...]
    samples: int
    started: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Taken(Generic[Request]):
    """A batch to run now, and requests dropped because their deadlines passed or cannot be met."""

    batch: Batch[Request] | None
    dropped: list[Request] = field(default_factory=list)


class HeldRequests(Protocol):
    """Requests that compiled code holds, and offers to the scheduler itself."""

    def together(self, packed: bytes, samples: int) -> Any:
        """Requests of one batch as one.

        Args:
            packed: their handles, int64.
        """

    def apart(self, handles: Sequence[int]) -> Sequence[Any]:
        """Requests that are not held any longer."""

    def dropped(self, handles: Sequence[int], states: Sequence[RequestState]) -> Sequence[Any]:
        """Requests that left the queue without being run, each group of them as one."""


class Batcher(Generic[Request]):
    """Schedules all queues of a process.

    Not thread-safe: the caller holds a lock. Every time is in seconds on one clock.

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
        self._library = LIBRARY
        address = LIBRARY.sharded_infer_scheduler_create(
            slots, limits.requests, limits.samples, limits.size_bytes
        )
        weakref.finalize(self, LIBRARY.sharded_infer_scheduler_destroy, address).atexit = False
        self.address: int = address
        self._counters = Counters.from_address(LIBRARY.sharded_infer_scheduler_counters(address))
        self._refused = Refused.from_address(LIBRARY.sharded_infer_scheduler_refused(address))
        self._handles = Handles.from_address(LIBRARY.sharded_infer_scheduler_handles(address))
        self._offer = LIBRARY.sharded_infer_scheduler_offer
        self._take = LIBRARY.sharded_infer_scheduler_take
        self._finish = LIBRARY.sharded_infer_scheduler_finish
        self._next = LIBRARY.sharded_infer_scheduler_next_request
        self._linger = LIBRARY.sharded_infer_scheduler_linger_seconds
        # Waiting requests by handle, and running batches by number.
        self._waiting: dict[int, Request] = {}
        self._running: dict[Batch[Request], int] = {}
        self._held: HeldRequests | None = None
        # Compiled code refers to them.
        self._queues: list[VersionQueue] = []

    @property
    def requests(self) -> int:
        """Requests that wait."""
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

    def hold(self, held: HeldRequests) -> None:
        """Sets whose the handles below zero are."""
        self._held = held

    def add_queue(self, queue: VersionQueue) -> None:
        """Adds a version's queue."""
        self._queues.append(queue)
        self._library.sharded_infer_scheduler_add_queue(self.address, queue.address)

    def remove_queue(self, queue: VersionQueue) -> None:
        """Removes a version's queue. Requests that wait in it, or still arrive, are run first."""
        self._library.sharded_infer_scheduler_remove_queue(self.address, queue.address)
        # From now on its requests keep it.
        self._queues.remove(queue)

    def offer(self, request: Request, now: float) -> None:
        """Queues a request.

        Raises:
            DeadlineError: the deadline has passed or cannot be met.
            QueueFullError: there is no room; carries the retry time.
        """
        handle = self._offer(
            self.address,
            request.queue.address,
            request.samples,
            request.size_bytes,
            request.priority,
            request.arrived,
            request.deadline,
            now,
        )
        if handle < 0:
            self._refuse(request, now)
        request.handle = handle
        request.state = RequestState.WAITING
        self._waiting[handle] = request

    def deadline_unreachable(
        self, queue: VersionQueue, deadline: float, priority: int, now: float
    ) -> bool:
        """Whether `offer` would refuse a one-sample request now because of its deadline.

        Args:
            priority: as the client sent it; 0 means the default.
        """
        return bool(
            self._library.sharded_infer_scheduler_deadline_unreachable(
                self.address, queue.address, deadline, min(priority, LOWEST_PRIORITY), now
            )
        )

    def backlog(self, now: float) -> float:
        """Seconds to the nearest deadline that is reachable, to 8 ms and at most 2 s."""
        seconds: float = self._library.sharded_infer_scheduler_backlog(self.address, now)
        return seconds

    def urgent_lead(self, now: float) -> float:
        """Seconds by which an unread request may go before others with its deadline."""
        seconds: float = self._library.sharded_infer_scheduler_urgent_lead(self.address, now)
        return seconds

    def take(self, now: float) -> Taken[Request]:
        """Takes the batch to run now, and drops requests that cannot be answered in time."""
        self._take(self.address, now)
        handles = self._handles
        dropped = self._dropped() if handles.dropped else []
        number = handles.batch
        if not number:
            return Taken(None, dropped)
        if handles.below_zero == handles.requests:
            size = handles.requests * _HANDLE_BYTES
            packed = ctypes.string_at(handles.request_handles, size)
            requests: tuple[Request, ...] = (self._holder().together(packed, handles.samples),)
        else:
            requests = tuple(self._leave(handles.request_handles[: handles.requests]))
        for request in requests:
            request.state = RequestState.RUNNING
        batch = Batch(requests[0].queue, requests, handles.samples, now, handles.predicted)
        self._running[batch] = number
        return Taken(batch, dropped)

    def is_ready(self, now: float) -> bool:
        """True if `take` would return a batch now."""
        ready: bool = self._next(self.address, now) != -1
        return ready

    def linger_seconds(self, now: float) -> float:
        """Seconds that the next batch may wait for more requests; 0 or less: do not wait."""
        seconds: float = self._linger(self.address, now)
        return seconds

    def due(self, now: float) -> float:
        """When to call `take` again if nothing else happens; infinity means never."""
        when: float = self._library.sharded_infer_scheduler_due(self.address, now)
        return when

    def finish(
        self, batch: Batch[Request], *, seconds: float, now: float, cpu_seconds: float | None = None
    ) -> None:
        """Frees a batch's slot and records its run time.

        Args:
            seconds: the batch's elapsed time.
            cpu_seconds: processor time of the batch's thread; None means all of `seconds`.
        """
        number, queue = self._running.pop(batch), batch.requests[0].queue.address
        burnt = seconds if cpu_seconds is None else cpu_seconds
        self._finish(self.address, number, queue, batch.samples, seconds, now, burnt)

    def cancel(self, request: Request) -> bool:
        """Removes a request from its queue; False if it is running or has left."""
        if request.state is not RequestState.WAITING:
            return False
        self._library.sharded_infer_scheduler_cancel(self.address, request.handle)
        del self._waiting[request.handle]
        request.state = RequestState.CANCELLED
        return True

    def expire(self, now: float) -> list[Request]:
        """Removes and returns every request whose deadline has passed."""
        self._library.sharded_infer_scheduler_expire(self.address, now)
        return self._dropped()

    def _dropped(self) -> list[Request]:
        handles = self._handles
        left = handles.dropped_handles[: handles.dropped]
        states = [_STATES[state] for state in handles.dropped_states[: handles.dropped]]
        dropped: list[Request] = []
        held: list[tuple[int, RequestState]] = []
        for handle, state in zip(left, states, strict=True):
            if handle < 0:
                held.append((handle, state))
                continue
            request = self._waiting.pop(handle)
            request.state = state
            dropped.append(request)
        if held:
            dropped += self._holder().dropped(*zip(*held, strict=True))
        return dropped

    def _leave(self, handles: Sequence[int]) -> list[Request]:
        """Requests that run, by their handles."""
        below = [handle for handle in handles if handle < 0]
        apart = iter(self._holder().apart(below) if below else ())
        return [self._waiting.pop(h) if h >= 0 else next(apart) for h in handles]

    def _holder(self) -> HeldRequests:
        if self._held is None:
            raise InternalError("a request is held by nobody")
        return self._held

    def _refuse(self, request: Request, now: float) -> NoReturn:
        refused: Any = self._refused
        if refused.why == _PASSED:
            request.state = RequestState.EXPIRED
            raise deadline_passed()
        expected = refused.end - now
        if refused.why == _UNREACHABLE:
            request.state = RequestState.INFEASIBLE
            raise deadline_unreachable(left=request.deadline - now, expected=expected)
        what = _LIMITED[refused.why]
        raise queue_full(what, wanted=refused.wanted, limit=refused.limit, expected=expected)
