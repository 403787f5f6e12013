"""Runs the batches that the batcher chooses in its run slots.

The dispatcher has no threads of its own. Threads that bring requests (`offer`, `work`) run
everything that is ready, so an idle server has no hand-off between socket and kernel
(Leader/Followers, Schmidt et al., 2000).
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, thread_time
from typing import Any, Generic

from kernels.wording import counted
from serving.errors import CancelledError, DeadlineError
from serving.scheduler.batcher import Batch, Batcher
from serving.scheduler.queued_request import QueuedRequest, Request, RequestState
from serving.scheduler.version_queue import VersionQueue
from sharded_infer.errors import InternalError

_log = logging.getLogger("sharded_infer")
_FOREVER = float("inf")
# After this many yields without a new request, a thread stops yielding.
_YIELDS = 6
# After this many batches in a row that no request joined, only one batch in this many yields.
_LONELY = 16
# Before 3.12, Python's own `os.sched_yield` holds the GIL while it yields.
_sched_yield = ctypes.CDLL(None).sched_yield


class Dispatcher(Generic[Request]):
    """Runs the requests of one process. Thread-safe.

    Attributes:
        on_more: called when another batch is ready and a slot is free.
    """

    def __init__(
        self,
        batcher: Batcher[Request],
        execute: Callable[[Sequence[Request]], Sequence[Any]],
        *,
        observe: Callable[[Batch[Request], float], None],
        on_dropped: Callable[[Request], None],
        on_waiting: Callable[[Request], None],
    ) -> None:
        """Starts with no queues.

        Args:
            batcher: owned by this object.
            execute: runs requests of one queue together; returns one result or exception for each.
                It may complete some before it returns.
            observe: called with each batch that has run and its elapsed seconds.
            on_dropped: called with each request that leaves the queue without being run.
            on_waiting: called with each request that waits in the queue.
        """
        self._batcher = batcher
        self._execute = execute
        self._observe = observe
        self._on_dropped = on_dropped
        self._on_waiting = on_waiting
        self._lock = threading.Lock()
        self._gathering = 0
        # Start time of each running batch, by thread identifier.
        self._began: dict[int, float] = {}
        self.on_more: Callable[[], None] = _nobody
        # Batches in a row that no request joined.
        self._lonely = 0

    @property
    def slots(self) -> int:
        """Batches that may run at once."""
        return self._batcher.slots

    @property
    def running_since(self) -> float:
        """Start of the batch that has run longest, monotonic; infinity if none runs."""
        return min(list(self._began.values()), default=_FOREVER)

    @property
    def waiting(self) -> tuple[int, int]:
        """Numbers of waiting requests and samples."""
        return self._batcher.requests, self._batcher.samples

    def add_queue(self, queue: VersionQueue) -> None:
        """Adds a version's queue."""
        with self._lock:
            self._batcher.add_queue(queue)

    def remove_queue(self, queue: VersionQueue) -> None:
        """Removes a version's queue; requests that began before are still answered."""
        with self._lock:
            self._batcher.remove_queue(queue)

    def deadline_unreachable(self, queue: VersionQueue, deadline: float, priority: int = 0) -> bool:
        """True if a one-sample request that arrived now would miss this deadline."""
        if not self._batcher.requests:
            return False
        now = monotonic()
        with self._lock:
            return self._batcher.deadline_unreachable(queue, deadline, priority, now)

    def backlog(self) -> float:
        """Seconds to a deadline below which every request would be refused, to 8 ms; at most 2."""
        if not self._batcher.requests:
            return 0.0
        with self._lock:
            return self._batcher.backlog(monotonic())

    def urgent_lead(self) -> float:
        """Seconds by which an unread request may go before others with its deadline."""
        with self._lock:
            return self._batcher.urgent_lead(monotonic())

    def offer(self, request: Request) -> None:
        """Queues a request, whose answer goes to `on_done`. The caller must call `work` afterwards.

        Raises DeadlineError or QueueFullError if the request is refused.
        """
        with self._lock:
            self._batcher.offer(request, monotonic())
        self._on_waiting(request)

    def work(self, *, gathered: bool = False) -> bool:
        """Runs a ready batch on this thread, if a slot is free. If True, there may be more.

        Args:
            gathered: the thread has read what came already.

        Returns:
            Whether a batch was run; if so, there may be another.
        """
        # Read without the lock: a thread that frees a slot, or gathers, checks the queue after it.
        if self._batcher.idle_slots <= self._gathering or not (gathered or self._gather()):
            return False
        with self._lock:
            now = monotonic()
            taken = self._batcher.take(now)
            other = taken.batch is not None and self._batcher.is_ready(now)
        self._drop(taken.dropped)
        if taken.batch is None:
            return False
        if other:
            # Another slot is free, and this thread is about to be busy.
            self.on_more()
        self._run(taken.batch)
        return True

    def run_idle(self, request: Request, task: Callable[[], None]) -> bool:
        """Runs a task on this thread and returns True if a slot is idle and nothing waits for it.

        What became ready meanwhile is run on this thread before it returns. For the batcher,
        `request` stands for the task. Its queue has been removed again, so the batcher has it only
        while the request waits.
        """
        batch = self._take_idle(request)
        if batch is None:
            return False
        started = monotonic()
        self._began[threading.get_ident()] = started
        try:
            task()
        finally:
            now = monotonic()
            with self._lock:
                self._batcher.finish(batch, seconds=now - started, now=now)
                del self._began[threading.get_ident()]
            while self.work():
                pass
        return True

    def _take_idle(self, request: Request) -> Batch[Request] | None:
        with self._lock:
            spare = self._batcher.idle_slots - self._gathering
            if spare <= 0 or self._batcher.requests:
                return None
            now = monotonic()
            self._batcher.offer(request, now)
            taken = self._batcher.take(now)
            self._batcher.cancel(request)
        self._drop(taken.dropped)
        if taken.batch is None or request in taken.batch.requests:
            return taken.batch
        # Compiled code has queued another request in between, which goes first.
        self._run(taken.batch)
        while self.work():
            pass
        return None

    def cancel(self, request: Request) -> None:
        """Removes a request whose client has gone; a running request is not interrupted."""
        with self._lock:
            waited = self._batcher.cancel(request)
        if waited:
            self.gave_up(request)

    def gave_up(self, request: Request) -> None:
        """Ends a request that has left its queue because its client has gone."""
        self._on_dropped(request)
        self._fail(request, CancelledError("the client gave the request up"))

    def expire(self) -> None:
        """Fails waiting requests whose deadlines have passed."""
        with self._lock:
            late = self._batcher.expire(monotonic())
        self._drop(late)

    def due(self) -> float:
        """When to call `work` again if nothing arrives before, on the monotonic clock."""
        with self._lock:
            return self._batcher.due(monotonic())

    def _gather(self) -> bool:
        """Yields to other threads if more requests would save time; False if others do already."""
        with self._lock:
            if self._batcher.linger_seconds(monotonic()) <= 0.0:
                return True
            if self._gathering >= self._batcher.idle_slots:
                return False
            self._gathering += 1
        if self._lonely < _LONELY or self._lonely % _LONELY == 0:
            self._make_way()
        with self._lock:
            self._gathering -= 1
            self._lonely = self._lonely + 1 if self._batcher.requests < 2 else 0
        return True

    def _make_way(self) -> None:
        """Yields to transport threads that share this core, because they may bring more requests.

        If no other thread can run, this takes a microsecond or two.
        """
        seen, in_vain = self._batcher.requests, 0
        while in_vain < _YIELDS:
            _sched_yield()
            before, seen = seen, self._batcher.requests
            in_vain = 0 if seen > before else in_vain + 1

    def _run(self, batch: Batch[Request]) -> None:
        requests = batch.requests
        started, worked = monotonic(), thread_time()
        self._began[threading.get_ident()] = started
        for request in requests:
            request.started = started
        try:
            results = list(self._execute(requests))
            if len(results) != len(requests):
                ran = counted(len(requests), "request")
                raise InternalError(f"ran {ran}, answered {len(results)}")
        except Exception as error:
            # `execute` answers each request, so this is a bug of ours. It must not stop the server.
            results = [error] * len(requests)
        now = monotonic()
        worked = now - started if batch.queue.policy.by_clock else thread_time() - worked
        with self._lock:
            self._batcher.finish(batch, seconds=now - started, now=now, cpu_seconds=worked)
            del self._began[threading.get_ident()]
        try:
            self._observe(batch, now - started)
        except Exception:
            _log.exception("internal error in counting a batch")
        for request, result in zip(requests, results, strict=True):
            if request.done:
                # Completed before the others ran.
                continue
            if isinstance(result, Exception):
                self._fail(request, result)
            else:
                request.result = result
                complete(request)

    def _drop(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._on_dropped(request)
            if request.state is RequestState.EXPIRED:
                words = "the request's deadline passed while it waited"
            else:
                words = "the request's deadline could not be met any more when its turn came"
            self._fail(request, DeadlineError(words))

    def _fail(self, request: Request, error: Exception) -> None:
        request.error = error
        complete(request)


def _nobody() -> None:
    """Does nothing: threads that bring requests run what is ready."""


def complete(request: QueuedRequest) -> None:
    """Calls `on_done` of a request that has its result or error."""
    if request.on_done is not None:
        try:
            request.on_done(request)
        except Exception:
            # A bug of ours must not keep the rest of the batch from their answers.
            _log.exception("internal error in sending an answer")
