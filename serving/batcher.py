"""Which requests run next, and together: the decision alone, without threads, clocks or I/O.

offer(ticket, now)    queue it, or refuse it: no room, or its deadline cannot be met
take(now)             the batch that runs now, if a slot is free and a lane is ready
finish(batch, …)      frees the slot, and tells the cost table what the batch took
withdraw(ticket)      its client has gone, or waited long enough

A lane is one version's queue (`serving/lane.py`): the batcher picks among them.
"""

from dataclasses import dataclass, field
from itertools import count, islice

from serving.lane import DEFAULT_PRIORITY, Lane, Ticket, TicketState
from serving.refusals import DeadlineError, QueueFullError

# So long after a request of a higher priority, an unread one may be such a one too.
_PRIORITY_SECONDS_REMEMBERED = 60.0


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait, in all lanes together.

    Attributes:
        requests: their number.
        samples: their samples.
        size_bytes: their messages' bytes.
    """

    requests: int = 1024
    samples: int = 2**20
    size_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Requests that run together.

    Attributes:
        lane: whose they are.
        tickets: in the order in which they were due.
        samples: of all.
        started: when it was taken.
        predicted: seconds that it should take.
    """

    lane: Lane
    tickets: tuple[Ticket, ...]
    samples: int
    started: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Taken:
    """What `take` decided.

    Attributes:
        batch: what runs now; None: nothing does.
        dropped: requests that left the queue, because their deadline passed or cannot be met.
    """

    batch: Batch | None
    dropped: list[Ticket] = field(default_factory=list)


class Batcher:
    """Decides for all lanes of a process. Not safe between threads: its owner holds a lock."""

    def __init__(self, *, slots: int = 1, limits: QueueLimits | None = None) -> None:
        """Begins with all slots free.

        Args:
            slots: batches that run side by side: one for each core. Where a lane's devices hold
                another number, that holds.
            limits: how much may wait.
        """
        self.slots = self._cores = slots
        self._limits = limits or QueueLimits()
        self._lanes: list[Lane] = []
        self._running: list[Batch] = []
        self._sequence = count()
        self.requests = 0
        self.samples = 0
        self.size_bytes = 0
        # The last request of a priority above the default: its priority, and when it came.
        self._urgent = (DEFAULT_PRIORITY, float("-inf"))

    def add_lane(self, lane: Lane) -> None:
        """Takes a version in."""
        self._lanes.append(lane)
        self._fit_slots()

    def remove_lane(self, lane: Lane) -> None:
        """Lets a version go; what waits in its lane, or still comes to it, is run."""
        lane.leaving = True
        if not len(lane):
            self._lanes.remove(lane)
        self._fit_slots()

    def _fit_slots(self) -> None:
        # What waits for a device in line with others could have joined them in one batch.
        held = (lane.policy.device_slots for lane in self._lanes if not lane.leaving)
        self.slots = max(held, default=0) or self._cores

    @property
    def idle_slots(self) -> int:
        """Slots that run nothing; below 0 where they have just become fewer."""
        return self.slots - len(self._running)

    def offer(self, ticket: Ticket, now: float) -> None:
        """Queues a request.

        Args:
            ticket: new.
            now: any clock's seconds.

        Raises:
            DeadlineError: its deadline has passed, or cannot be met.
            QueueFullError: there is no room; says when there may be.
        """
        if ticket.level < DEFAULT_PRIORITY:
            self._urgent = (ticket.level, now)
        ticket.lane.saw(ticket.samples)
        if ticket.deadline <= now:
            ticket.state = TicketState.EXPIRED
            raise DeadlineError("the request's deadline had passed when it could have been queued")
        if self.requests:
            self._refuse_full(ticket, now)
        if ticket.latest_end != float("inf"):
            end = self._expected_end(ticket, now)
            if end > ticket.latest_end and not self._measures(ticket, now):
                ticket.state = TicketState.INFEASIBLE
                raise DeadlineError(
                    f"the deadline cannot be met: {(ticket.deadline - now) * 1e3:.3g} ms are left, "
                    f"an answer would take about {(end - now) * 1e3:.3g} ms"
                )
        ticket.sequence = next(self._sequence)
        ticket.state = TicketState.WAITING
        if ticket.lane.leaving and not len(ticket.lane):
            self._lanes.append(ticket.lane)
        ticket.lane.add(ticket)
        self._count(ticket, 1)

    def is_too_late(self, ticket: Ticket, now: float) -> bool:
        """Whether `offer` would refuse a request for its deadline, while others wait."""
        return ticket.deadline <= now or self._expected_end(ticket, now) > ticket.latest_end

    def is_hopeless(self, deadline: float, now: float, coming: int = 0) -> bool:
        """Whether a request can be refused unread: `offer` would refuse it in every lane.

        It is taken to be as small, and as urgent, as any that has come lately. So the first small
        or urgent one of many large and patient ones may be refused where `offer` would not.

        Args:
            deadline: of a request that nothing else is known of.
            now: any clock's seconds.
            coming: requests that have been let in, but are not offered yet.
        """
        level, seen = self._urgent
        priority = level if now - seen < _PRIORITY_SECONDS_REMEMBERED else DEFAULT_PRIORITY
        for lane in self._lanes:
            samples = round(lane.least_samples)
            ticket = Ticket(
                lane, samples=samples, arrived=now, deadline=deadline, priority=priority
            )
            before = coming * lane.costs.predicted(samples) / self.slots
            if self._expected_end(ticket, now) + before <= ticket.latest_end:
                return False
        return bool(self._lanes)

    def take(self, now: float) -> Taken:
        """The batch that runs now.

        Args:
            now: any clock's seconds.
        """
        taken = Taken(None)
        while len(self._running) < self.slots:
            # A lane that waits for more does not hold up another.
            ready = (lane for lane in self._lanes if lane.due(now) <= now)
            lane = min(ready, key=Lane.head_key, default=None)
            if lane is None:
                return taken
            batch = self._take_from(lane, now, taken.dropped)
            if batch is not None:
                self._running.append(batch)
                return Taken(batch, taken.dropped)
        return taken

    def heir(self, now: float) -> Ticket | None:
        """The request that the next batch begins with, if `take` would give one now."""
        if len(self._running) >= self.slots:
            return None
        ready = (lane for lane in self._lanes if lane.due(now) <= now)
        lane = min(ready, key=Lane.head_key, default=None)
        return None if lane is None else lane.head()

    def worth_waiting(self, now: float) -> float:
        """Seconds that the next batch may wait for a request that is known to come; 0: none.

        No longer than the batch itself takes, and not into its deadline.
        """
        heir = self.heir(now)
        if heir is None or not heir.lane.seeks_company():
            return 0.0
        seconds = heir.lane.costs.predicted(heir.lane.samples)
        return min(seconds, heir.latest_end - now - seconds)

    def due(self, now: float) -> float:
        """When `take` should be asked again, if nothing happens before; infinity: never."""
        if len(self._running) >= self.slots:
            return float("inf")
        return min((lane.due(now) for lane in self._lanes), default=float("inf"))

    def finish(
        self, batch: Batch, *, seconds: float, now: float, cpu_seconds: float | None = None
    ) -> None:
        """Frees a batch's slot.

        Args:
            batch: has run.
            seconds: what it took.
            now: any clock's seconds.
            cpu_seconds: what its thread worked; None: all the time.
        """
        self._running.remove(batch)
        batch.lane.costs.observe(batch.samples, seconds, now, cpu_seconds=cpu_seconds)

    def withdraw(self, ticket: Ticket) -> bool:
        """Takes a request out of the queue.

        Returns:
            Whether it waited; False: it has been taken, or has left already.
        """
        if ticket.state is not TicketState.WAITING:
            return False
        self._leave(ticket, TicketState.WITHDRAWN)
        return True

    def expire(self, now: float) -> list[Ticket]:
        """Takes out every request whose deadline has passed."""
        late = [t for lane in self._lanes for t in lane.tickets() if t.deadline <= now]
        for ticket in late:
            self._leave(ticket, TicketState.EXPIRED)
        return late

    def _count(self, ticket: Ticket, sign: int) -> None:
        self.requests += sign
        self.samples += sign * ticket.samples
        self.size_bytes += sign * ticket.size_bytes

    def _leave(self, ticket: Ticket, state: TicketState) -> None:
        ticket.lane.remove(ticket)
        ticket.state = state
        self._count(ticket, -1)
        if ticket.lane.leaving and not len(ticket.lane):
            self._lanes.remove(ticket.lane)

    def _refuse_full(self, ticket: Ticket, now: float) -> None:
        # A request that is larger than the whole queue may wait alone: the checks are for company.
        limits = self._limits
        checks = (
            ("requests", self.requests + 1, limits.requests),
            ("samples", self.samples + ticket.samples, limits.samples),
            ("bytes", self.size_bytes + ticket.size_bytes, limits.size_bytes),
        )
        for what, wanted, limit in checks:
            if wanted > limit:
                retry = max(self._expected_end(ticket, now) - now, 0.001)
                raise QueueFullError(
                    f"the queue is full: {wanted} {what} would wait, at most {limit} may; retry in "
                    f"{retry * 1e3:.0f} ms",
                    retry_seconds=retry,
                )

    def _expected_end(self, ticket: Ticket, now: float) -> float:
        before, own = ticket.lane.work_ahead(ticket)
        others = (other for other in self._lanes if other is not ticket.lane and len(other))
        before += sum(other.work_before(ticket.key) for other in others)
        start = now
        if len(self._running) >= self.slots:
            start = max(now, min(batch.started + batch.predicted for batch in self._running))
        return start + before / self.slots + own

    def _measures(self, ticket: Ticket, now: float) -> bool:
        # Its own time is what refuses it, and nobody else of its lane waits to be measured.
        costs = ticket.lane.costs
        alone = not len(ticket.lane) and now + costs.predicted(ticket.samples) > ticket.latest_end
        return alone and costs.is_stale(ticket.samples, now)

    def _take_from(self, lane: Lane, now: float, dropped: list[Ticket]) -> Batch | None:
        if self._first(lane, now, dropped) is None:
            return None
        for ticket in list(islice(lane.tickets(), lane.squeezing(now, self.slots))):
            self._leave(ticket, TicketState.INFEASIBLE)
            dropped.append(ticket)
        requests, samples = lane.batch_from(0, now)
        tickets = tuple(islice(lane.tickets(), requests))
        for ticket in tickets:
            self._leave(ticket, TicketState.TAKEN)
        return Batch(lane, tickets, samples, now, lane.costs.predicted(samples))

    def _first(self, lane: Lane, now: float, dropped: list[Ticket]) -> Ticket | None:
        while len(lane):
            ticket = lane.head()
            if ticket.deadline <= now:
                self._leave(ticket, TicketState.EXPIRED)
            elif now + lane.costs.predicted(ticket.samples) > ticket.latest_end and not (
                lane.costs.is_stale(ticket.samples, now)
            ):
                self._leave(ticket, TicketState.INFEASIBLE)
            else:
                return ticket
            dropped.append(ticket)
        return None
