"""One version's queue: which request is first, and how much work is ahead of another.

The earliest key goes first:

    key = min(deadline, arrived + PATIENCE) + priority * PRIORITY_SECONDS

which is earliest deadline first (Liu and Layland, 1973), with two bounds that keep everyone
moving: whoever has no deadline is treated as having one of PATIENCE, and a priority is worth so
much waiting and no more, so that no stream of urgent requests holds back another for ever.
"""

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from serving.cost_table import CostTable

PATIENCE = 1.0
PRIORITY_SECONDS = 0.05
DEFAULT_PRIORITY = 2
LOWEST_PRIORITY = 10
# Of the time that a request has when it comes, kept for writing and sending its answer.
_RESERVED_SHARE = 0.1
_MOST_RESERVED = 0.005
# A merged request must save this much of what it costs alone, or shorten everybody's wait.
_WORTHWHILE_SAVING = 0.25
# How fast the least size of late follows larger requests.
_LEAST_RISES = 0.05
# A batch must score so many times as many samples a second, before anyone is given up for it.
_WORTHWHILE_GAIN = 1.25


class Mode(Enum):
    """How a lane puts requests together."""

    INLINE = "inline"  # never: each runs by itself
    BATCHED = "batched"  # always: it waits up to the delay for more
    AUTO = "auto"  # what has come while all slots were busy, as far as it pays


class TicketState(Enum):
    """Where a request is; it only moves downwards."""

    NEW = 0
    WAITING = 1
    TAKEN = 2
    EXPIRED = 3
    INFEASIBLE = 4
    WITHDRAWN = 5


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """How one lane batches.

    Attributes:
        mode: see `Mode`.
        max_batch: samples of a batch of several requests.
        max_delay: seconds that a batched lane waits for more requests.
        by_clock: a batch's cost is the time it takes, for it waits for devices; otherwise its
            thread's processor time.
        device_slots: batches that its devices hold at once; 0: it runs on the host's cores.
    """

    mode: Mode = Mode.AUTO
    max_batch: int = 1024
    max_delay: float = 0.001
    by_clock: bool = False
    device_slots: int = 0


class Ticket:
    """One request's place in the queue."""

    __slots__ = (
        "alone_seconds", "arrived", "deadline", "item", "key", "lane", "latest_end", "level",
        "samples", "sequence", "size_bytes", "state",
    )  # fmt: skip

    def __init__(
        self,
        lane: "Lane",
        *,
        samples: int,
        arrived: float,
        deadline: float = float("inf"),
        size_bytes: int = 0,
        priority: int = 0,
        item: Any = None,
    ) -> None:
        """Describes a request.

        Args:
            lane: of the version that is asked.
            samples: to score.
            arrived: when it came, on the clock of `now`.
            deadline: when its answer is worth nothing any more.
            size_bytes: of its message.
            priority: 1 goes before 2, and so on to 10; 0 is 2.
            item: the caller's own.
        """
        self.lane = lane
        self.samples = samples
        self.arrived = arrived
        self.deadline = deadline
        self.size_bytes = size_bytes
        self.item = item
        self.state = TicketState.NEW
        self.alone_seconds = 0.0
        self.sequence = 0
        self.level = min(priority, LOWEST_PRIORITY) or DEFAULT_PRIORITY
        self.key = min(deadline, arrived + PATIENCE) + self.level * PRIORITY_SECONDS
        self.latest_end = deadline
        if deadline != float("inf"):
            self.latest_end -= min(_RESERVED_SHARE * (deadline - arrived), _MOST_RESERVED)


class _Place(NamedTuple):
    """A ticket in its lane's order."""

    key: float
    sequence: int
    ticket: Ticket


def _key_of(place: _Place) -> float:
    return place.key


class Lane:
    """One version's queue. Only its batcher changes it."""

    def __init__(self, policy: LanePolicy, costs: CostTable) -> None:
        """Begins empty.

        Args:
            policy: how it batches.
            costs: of the version's batches.
        """
        self.policy = policy
        self.costs = costs
        self.samples = 0
        # Its version is let go: it is asked only while requests that began before wait in it.
        self.leaving = False
        # As few as any request has had lately.
        self.least_samples = 1.0
        self._alone_seconds = 0.0
        self._places: list[_Place] = []
        # Who waits, in order of arrival: a batched lane waits for the first of them.
        self._arrivals: OrderedDict[Ticket, None] = OrderedDict()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._places)

    def head_key(self) -> float:
        """The earliest key; infinity when nothing waits."""
        return self._places[0].key if self._places else float("inf")

    def head(self) -> Ticket:
        """The request that goes first."""
        return self._places[0].ticket

    def oldest_arrival(self) -> float:
        """When the request came that has waited longest; infinity when nothing waits.

        Any thread may ask: the list is copied at once.
        """
        return min((place.ticket.arrived for place in self._places.copy()), default=float("inf"))

    def tickets(self) -> Iterator[Ticket]:
        """The requests that wait, in order."""
        return (place.ticket for place in self._places)

    def saw(self, samples: int) -> None:
        """Takes note of a request's size, be it queued or not."""
        rise = _LEAST_RISES * (samples - self.least_samples)
        self.least_samples = min(float(samples), self.least_samples + rise)

    def add(self, ticket: Ticket) -> None:
        """Queues a request."""
        insort(self._places, _Place(ticket.key, ticket.sequence, ticket))
        ticket.alone_seconds = self.costs.predicted(ticket.samples)
        self._alone_seconds += ticket.alone_seconds
        self.samples += ticket.samples
        if self.policy.mode is Mode.BATCHED:
            self._arrivals[ticket] = None

    def remove(self, ticket: Ticket) -> None:
        """Takes a request out."""
        at = bisect_left(self._places, (ticket.key, ticket.sequence))
        del self._places[at]
        self._alone_seconds -= ticket.alone_seconds
        self.samples -= ticket.samples
        self._arrivals.pop(ticket, None)

    def due(self, now: float) -> float:
        """When its batch begins, if nothing else comes; infinity when nothing waits."""
        if not self._places:
            return float("inf")
        if self.policy.mode is not Mode.BATCHED or self.samples >= self.policy.max_batch:
            return now
        first = next(iter(self._arrivals))
        # Waiting longer than this would break the most pressing deadline.
        pressed = self._places[0].ticket.latest_end - self.costs.predicted(self.samples)
        return min(first.arrived + self.policy.max_delay, pressed)

    def work_ahead(self, ticket: Ticket) -> tuple[float, float]:
        """Seconds of work before a request's own batch, and of that batch."""
        own = self.costs.predicted(ticket.samples)
        samples, alone = self.samples, self._alone_seconds
        if not samples:
            return 0.0, own
        if ticket.key < self._places[-1].key:
            ahead = [place.ticket for place in self._places if place.key <= ticket.key]
            samples = sum(other.samples for other in ahead)
            alone = sum(other.alone_seconds for other in ahead)
        if self.policy.mode is Mode.INLINE:
            return alone, own
        before, last = self._full_batches(samples + ticket.samples)
        if self.policy.mode is Mode.BATCHED or before + last < alone + own:
            return before, last
        return alone, own

    def work_before(self, key: float) -> float:
        """Seconds of work that a request of another lane with this key waits for.

        Args:
            key: of that request.
        """
        ahead = self._places[: bisect_right(self._places, key, key=_key_of)]
        if len(ahead) == len(self):
            samples, alone = self.samples, self._alone_seconds
        else:
            samples = sum(place.ticket.samples for place in ahead)
            alone = sum(place.ticket.alone_seconds for place in ahead)
        if self.policy.mode is Mode.INLINE:
            return alone
        merged = sum(self._full_batches(samples))
        return merged if self.policy.mode is Mode.BATCHED else min(merged, alone)

    def batch_from(self, position: int, now: float) -> tuple[int, int]:
        """The batch that a request would head: its requests, which follow each other, and samples.

        Args:
            position: of its first request in the lane's order.
            now: when it would begin.
        """
        predicted, largest = self.costs.predicted, self.policy.max_batch
        first = self._places[position].ticket
        samples, seconds, earliest_end = first.samples, predicted(first.samples), first.latest_end
        end = position + 1
        while self.policy.mode is not Mode.INLINE and end < len(self._places):
            ticket = self._places[end].ticket
            together = samples + ticket.samples
            longer = predicted(together)
            earliest_end = min(earliest_end, ticket.latest_end)
            if together > largest or now + longer > earliest_end:
                break
            behind, requests = len(self._places) - end, end - position
            if self.policy.mode is Mode.AUTO and not self.pays(
                ticket, added=longer - seconds, requests=requests, behind=behind
            ):
                break
            samples, seconds, end = together, longer, end + 1
        return end - position, samples

    def seeks_company(self) -> bool:
        """Whether a batch of what waits would gain by another request like its first.

        What it costs by itself is mostly not the samples then, but what every batch costs.
        """
        if self.policy.mode is Mode.INLINE or self.samples >= self.policy.max_batch:
            return False
        one = self.head().samples
        predicted = self.costs.predicted
        added = predicted(self.samples + one) - predicted(self.samples)
        return added <= (1.0 - _WORTHWHILE_SAVING) * predicted(one)

    def pays(self, ticket: Ticket, *, added: float, requests: int, behind: int) -> bool:
        """Whether a request should join a batch, instead of running after it.

        It and everyone behind it win what joining saves; those in the batch lose what it adds. A
        large saving is taken in any case: it is throughput.

        Args:
            ticket: that may join.
            added: seconds by which the batch becomes longer.
            requests: of the batch.
            behind: requests that wait longer if it does not join, itself included.
        """
        alone = self.costs.predicted(ticket.samples)
        saved = alone - added
        return saved >= _WORTHWHILE_SAVING * alone or saved * behind > added * requests

    def squeezing(self, now: float, slots: int) -> int:
        """How many of the first requests should be given up, because they force a small batch.

        A request with little time left keeps the batch small, so the next one has as little left:
        under overload the lane would then run small batches for ever, at a fraction of its
        throughput. As in Nexus (Shen et al., SOSP 2019, "early drop") the batch begins with a
        request that has time for a larger one, if that scores far more samples a second, and more
        waits than can be answered in time.

        Args:
            now: when the batch would begin.
            slots: batches that run side by side.
        """
        predicted, largest = self.costs.predicted, self.policy.max_batch
        head = self.head()
        alone, whole = predicted(head.samples), predicted(min(self.samples, largest))
        if self.policy.mode is Mode.INLINE or not alone <= head.latest_end - now < whole:
            return 0
        if self.samples < slots * largest and not self._is_late(now + alone, slots):
            return 0
        _, samples = self.batch_from(0, now)
        best, given_up = _WORTHWHILE_GAIN * samples / predicted(samples), 0
        for share in (1.0, 0.5, 0.25):
            roomy = now + share * whole
            enough = (at for at, p in enumerate(self._places) if p.ticket.latest_end >= roomy)
            position = next(enough, 0)
            _, samples = self.batch_from(position, now)
            rate = samples / predicted(samples)
            if rate > best:
                best, given_up = rate, position
        return given_up

    def _is_late(self, start: float, slots: int) -> bool:
        # Whether the last deadline is missed, even if all before it run in full batches.
        samples = self.samples
        for place in reversed(self._places):
            if place.ticket.latest_end != float("inf"):
                before, last = self._full_batches(samples)
                return start + before / slots + last > place.ticket.latest_end
            samples -= place.ticket.samples
        return False

    def _full_batches(self, samples: int) -> tuple[float, float]:
        # Seconds of as many full batches as there are, and of the rest.
        full, rest = divmod(samples, self.policy.max_batch)
        costs = self.costs
        return full * costs.predicted(self.policy.max_batch), costs.predicted(rest) if rest else 0.0
