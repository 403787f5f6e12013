"""Runs what the batcher decides: slots, waiting threads, results.

There are no threads of its own. Whoever brings a request and finds a slot free runs it at once,
and then whatever has come meanwhile (leader and followers, Schmidt et al., 2000): an idle server
has no hand-off between socket and kernel. A thread that waits for its answer (`run`) leaves as soon
as it has it, and nudges the thread of the request that goes first: no answer waits for other
people's batches. Threads that only bring requests (`offer`, `work`) run all that is ready.
"""

import ctypes
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic, thread_time
from typing import Any

from kernels.wording import counted
from serving.arrivals import Arrivals
from serving.batcher import Batch, Batcher
from serving.job import Job
from serving.lane import Lane, Mode, Ticket, TicketState
from serving.refusals import CancelledError, DeadlineError
from sharded_infer.errors import InternalError

_log = logging.getLogger("sharded_infer")
_FOREVER = float("inf")
# Lock timeouts have an upper bound.
_LONGEST_WAIT = 3600.0
# How long a batch waits for requests that are on their way, at most.
_LONGEST_LINGER = 0.001
# How often it makes way for others in vain before it believes that nobody comes.
_YIELDS = 6
# After so many batches in a row that nobody joined, only every so many make way.
_LONELY = 16
# Python's own holds the GIL while it yields, before 3.12.
_sched_yield = ctypes.CDLL(None).sched_yield


# Runs jobs as one batch: a result, or the exception, for each.
Execute = Callable[[Sequence[Job]], Sequence[Any]]
Observe = Callable[[Batch, float], None]


class Dispatcher:
    """The requests of one process. Any thread may call.

    Attributes:
        arrivals: told by the transport of requests before they are read.
        on_more: called when a batch is ready, a slot is free, and no thread waits for its requests.
    """

    def __init__(
        self,
        batcher: Batcher,
        execute: Execute,
        *,
        observe: Observe,
        on_dropped: Callable[[Ticket], None],
        on_waiting: Callable[[Job], None],
    ) -> None:
        """Begins with nothing to do.

        Args:
            batcher: decides; not to be used by anyone else.
            execute: runs jobs of one lane together, with one result or exception for each.
            observe: told each batch that has run and its seconds.
            on_dropped: told each request that leaves the queue without being run.
            on_waiting: told each request that waits in the queue.
        """
        self._batcher = batcher
        self._execute = execute
        self._observe = observe
        self._on_dropped = on_dropped
        self._on_waiting = on_waiting
        self._lock = threading.Lock()
        self._gathering = 0
        # When each batch that runs began, by its thread.
        self._began: dict[int, float] = {}
        self.on_more: Callable[[], None] = _nobody
        # Batches in a row that made way for nobody.
        self._lonely = 0
        self.arrivals = Arrivals()

    @property
    def slots(self) -> int:
        """Batches that run side by side."""
        return self._batcher.slots

    @property
    def running_since(self) -> float:
        """When the longest of the batches that run began, monotonic; infinity: none runs."""
        return min(list(self._began.values()), default=_FOREVER)

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests and samples that wait now."""
        return self._batcher.requests, self._batcher.samples

    def add_lane(self, lane: Lane) -> None:
        """Takes a version in."""
        with self._lock:
            self._batcher.add_lane(lane)

    def remove_lane(self, lane: Lane) -> None:
        """Lets a version go; requests that began before are answered."""
        with self._lock:
            self._batcher.remove_lane(lane)

    def is_too_late(self, lane: Lane, deadline: float, priority: int = 0) -> bool:
        """Whether even a request of one sample could not be answered by then, if it came now."""
        if not self._batcher.requests:
            return False
        now = monotonic()
        ticket = Ticket(lane, samples=1, arrived=now, deadline=deadline, priority=priority)
        with self._lock:
            return self._batcher.is_too_late(ticket, now)

    def is_hopeless(self, time_remaining: float) -> bool:
        """Whether a request with so many seconds left would be refused, whatever it asks for."""
        if not self._batcher.requests:
            return False
        now = monotonic()
        with self._lock:
            return self._batcher.is_hopeless(now + time_remaining, now, self.arrivals.coming)

    def run(self, job: Job) -> None:
        """Runs a request and waits for its answer: `result` or `error` is set after.

        Raises:
            DeadlineError, QueueFullError: it is refused; it is not run.
        """
        job.wake = threading.Lock()
        job.wake.acquire()
        try:
            with self._lock:
                self._batcher.offer(job.ticket, monotonic())
        finally:
            self.arrivals.settle_own()
        leads = True
        while not job.done:
            if leads and self.work():
                continue
            self._on_waiting(job)
            leads = self._wait(job)
        self._pass_on()

    def offer(self, job: Job) -> None:
        """Queues a request whose answer `on_done` takes; `work` is to be called after.

        Raises:
            DeadlineError, QueueFullError: it is refused; it is not run.
        """
        with self._lock:
            self._batcher.offer(job.ticket, monotonic())
        self._on_waiting(job)

    def work(self) -> bool:
        """Runs one batch on this thread, if one is ready and a slot is free.

        Returns:
            Whether it did: there may be more.
        """
        # Read without the lock: whoever frees a slot, or gathers, looks at the queue after that.
        if self._batcher.idle_slots <= self._gathering or not self._gather():
            return False
        with self._lock:
            now = monotonic()
            taken = self._batcher.take(now)
            heir = None if taken.batch is None else self._batcher.heir(now)
            other: Job | None = None if heir is None else heir.item
        self._drop(taken.dropped)
        if taken.batch is None:
            return False
        if other is not None:
            # Another slot is free too, and this thread is busy from now on.
            if other.wake is None:
                self.on_more()
            else:
                other.nudge()
        self._run(taken.batch)
        return True

    def cancel(self, job: Job) -> None:
        """Takes a request out whose client has gone; one that runs already is not disturbed."""
        with self._lock:
            waited = self._batcher.withdraw(job.ticket)
        if waited:
            self._on_dropped(job.ticket)
            self._fail(job, CancelledError("the client gave the request up"))

    def expire(self) -> None:
        """Fails the requests whose deadlines have passed while they waited."""
        with self._lock:
            late = self._batcher.expire(monotonic())
        self._drop(late)

    def due(self) -> float:
        """When `work` should be called again, on the monotonic clock, if nothing comes before."""
        with self._lock:
            return self._batcher.due(monotonic())

    def _gather(self) -> bool:
        """Waits for those on their way, if it pays; False: another thread does so already."""
        with self._lock:
            seconds = self._batcher.worth_waiting(monotonic())
            if seconds <= 0.0:
                return True
            if self._gathering >= self._batcher.idle_slots:
                return False
            self._gathering += 1
        if self.arrivals.coming > 0 or self._lonely < _LONELY or self._lonely % _LONELY == 0:
            self._make_way()
        if self.arrivals.coming > 0:
            self.arrivals.wait(min(seconds, _LONGEST_LINGER))
        with self._lock:
            self._gathering -= 1
            self._lonely = self._lonely + 1 if self._batcher.requests < 2 else 0
        return True

    def _make_way(self) -> None:
        """Lets the transport's threads run, where they share this core: they may bring more.

        Nothing else to run, and this is over in a microsecond or two.
        """
        seen, in_vain = self.arrivals.coming, 0
        while in_vain < _YIELDS:
            _sched_yield()
            before, seen = seen, self.arrivals.coming + self._batcher.requests
            in_vain = 0 if seen > before else in_vain + 1

    def _run(self, batch: Batch) -> None:
        jobs = [ticket.item for ticket in batch.tickets]
        started, worked = monotonic(), thread_time()
        self._began[threading.get_ident()] = started
        for job in jobs:
            job.started = started
        try:
            results = list(self._execute(jobs))
            if len(results) != len(jobs):
                raise InternalError(f"ran {counted(len(jobs), 'request')}, answered {len(results)}")
        except Exception as error:
            # `execute` answers for each job: this is a bug of ours, and must not stop the server.
            results = [error] * len(jobs)
        now = monotonic()
        worked = now - started if batch.lane.policy.by_clock else thread_time() - worked
        with self._lock:
            self._batcher.finish(batch, seconds=now - started, now=now, cpu_seconds=worked)
            del self._began[threading.get_ident()]
        try:
            self._observe(batch, now - started)
        except Exception:
            _log.exception("internal error in counting a batch")
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                self._fail(job, result)
            else:
                job.result = result
                _tell(job)

    def _wait(self, job: Job) -> bool:
        """Waits until something has changed for a request.

        Returns:
            Whether it still waits in the queue: its thread should try to work.
        """
        ticket, wake = job.ticket, job.wake
        if wake is None:
            raise InternalError("a request waits that nobody can wake")
        patience = self._patience(ticket)
        if patience is None:
            return True
        if patience == _FOREVER:
            wake.acquire()
        else:
            wake.acquire(timeout=min(patience, _LONGEST_WAIT))
        if job.done:
            return False
        with self._lock:
            if ticket.state is not TicketState.WAITING:
                return False
            late = ticket.deadline <= monotonic()
            if late:
                self._batcher.withdraw(ticket)
                ticket.state = TicketState.EXPIRED
        if late:
            self._drop([ticket])
        return not late

    def _patience(self, ticket: Ticket) -> float | None:
        """How long a request's thread may sleep, seconds; None: it is ready, and a slot is free."""
        with self._lock:
            if ticket.state is not TicketState.WAITING:
                return _FOREVER  # it is being run: the answer will come
            now = monotonic()
            batched = ticket.lane.policy.mode is Mode.BATCHED
            due = ticket.lane.due(now) if batched else now
            if due <= now:
                if self._batcher.idle_slots > self._gathering:
                    return None  # it has become ready since its thread looked
                # It waits for a slot: whoever frees it will see to it. Its mates may leave
                # meanwhile; its lane is ready again when it has waited the delay itself.
                due = ticket.arrived + ticket.lane.policy.max_delay
                if not batched or due <= now:
                    due = ticket.deadline
            return max(0.0, min(due, ticket.deadline) - now)

    def _pass_on(self) -> None:
        """Sees to it that someone runs what is ready, before this thread goes."""
        # Whoever offers a request after this looked will find the slot free.
        while self._batcher.requests:
            with self._lock:
                heir = self._batcher.heir(monotonic())
                # Told by another thread, its ticket has no item any more.
                job: Job | None = None if heir is None else heir.item
            if job is None:
                return
            if job.wake is not None:
                job.nudge()
                return
            # Nobody waits for it on a thread of its own.
            if self.on_more is not _nobody:
                self.on_more()
                return
            self.work()

    def _drop(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tickets:
            self._on_dropped(ticket)
            if ticket.state is TicketState.EXPIRED:
                words = "the request's deadline passed while it waited"
            else:
                words = "the request's deadline could not be met any more when its turn came"
            self._fail(ticket.item, DeadlineError(words))

    def _fail(self, job: Job, error: Exception) -> None:
        job.error = error
        _tell(job)


def _nobody() -> None:
    """Whoever brings the next request, or ends a batch, sees to it."""


def _tell(job: Job) -> None:
    # The two refer to each other, and to the version: until a full collection, which a server puts
    # off for ever, a version that was let go would stay.
    job.ticket.item = None
    if job.on_done is None:
        job.nudge()
    else:
        try:
            job.on_done(job)
        except Exception:
            # A bug of ours must not keep the others of the batch from their answers.
            _log.exception("internal error in telling an answer")
