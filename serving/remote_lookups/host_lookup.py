"""A batch's lookup on one shard host, and what its answers and failures show of the replicas."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from serving.observability.host_spans import HostSpan, TracedBatch, new_span_id, traceparent
from serving.protocol.lookups.lookup_messages import Described
from serving.remote_lookups.replica_group import Replica, ReplicaGroup
from serving.status import Status, StatusCode
from serving.transport.http2_client import Message
from sharded_infer.errors import InternalError
from sharded_infer.lookups.shard_hosts import GroupAnswer, PieceBags

_ANSWERED = Status(StatusCode.OK, "")
# Of the request alone: they say nothing of the replica, and default rows do not stand for them.
REFUSALS = (StatusCode.INVALID_ARGUMENT, StatusCode.RESOURCE_EXHAUSTED)


class Attempt(NamedTuple):
    """A call of a replica, and its start."""

    replica: Replica
    began: float


class HostLookup:
    """A batch's lookup on one host.

    Attributes:
        chosen: next replica to call.
        open: calls without an answer, by number.
        checked: replicas whose versions were checked, since none with the version answers.
        checks: such checks without an answer, by number.
        late_at: when another replica is called too.
        is_lost: default rows replace its rows.
    """

    __slots__ = (
        "answers", "began", "checked", "checks", "chosen", "errors", "group", "groups", "hedges",
        "is_lost", "late_at", "may_lose", "message", "open", "span_id", "traced", "tried", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        group: ReplicaGroup,
        wanted: Described | None,
        message: Message,
        groups: Sequence[PieceBags],
        now: float,
        *,
        may_lose: bool = False,
        traced: TracedBatch | None = None,
    ) -> None:
        self.group, self.wanted, self.message, self.groups = group, wanted, message, groups
        self.may_lose = may_lose
        self.is_lost = may_lose and group.is_lost()
        self.began, self.late_at = now, math.inf
        self.tried: list[Replica] = []
        self.open: dict[int, Attempt] = {}
        self.checked: list[Replica] = []
        self.checks: dict[int, Replica] = {}
        self.errors: list[str] = []
        self.answers: Sequence[GroupAnswer] = ()
        self.hedges = 0
        self.traced, self.span_id = traced, 0 if traced is None else new_span_id()
        self.chosen = None if self.is_lost else group.begin(now, wanted)

    @property
    def chosen_replica(self) -> Replica:
        """Next replica to call; there must be one."""
        if self.chosen is None:
            raise InternalError("a call of no replica")
        return self.chosen

    @property
    def rows(self) -> int:
        """Number of requested rows."""
        return sum(one.chosen.id_count for one in self.groups)

    @property
    def traceparent(self) -> bytes:
        """Header of its calls; empty without a trace."""
        return b"" if self.traced is None else traceparent(self.traced.trace.trace_id, self.span_id)

    def sent(self, number: int, now: float) -> None:
        """Record that the chosen replica was called."""
        chosen = self.chosen_replica
        self.open[number] = Attempt(chosen, now)
        self.tried.append(chosen)
        self.chosen = None
        has_others = len(self.tried) < len(self.group.replicas)
        self.late_at = now + self.group.late_after() if has_others else math.inf

    def give_up(self) -> None:
        """Withdraw the calls of replicas that have not answered."""
        for attempt in self.open.values():
            self.group.withdrawn(attempt.replica)
        self.open.clear()
        if self.chosen is not None:
            self.group.withdrawn(self.chosen)
            self.chosen = None

    def failed(self, attempt: Attempt, code: StatusCode, now: float) -> None:
        """Report an error to its replica's group."""
        if code is StatusCode.NOT_FOUND:
            self.group.dropped(attempt.replica, self.wanted)
        elif code in REFUSALS or (
            # A client's deadline may be too short for anyone.
            code is StatusCode.DEADLINE_EXCEEDED and now < attempt.began + self.group.late_after()
        ):
            self.group.withdrawn(attempt.replica)
        else:
            self.group.failed(attempt.replica, now)

    def answered(self, attempt: Attempt, received_bytes: int, now: float) -> None:
        """Record an answer, which cancels the other calls; earlier called replicas have lost."""
        self.group.answered(attempt.replica, now, now - attempt.began)
        sent_bytes = len(self.tried) * len(self.message)
        self.group.looked_up(now - self.began, sent_bytes, received_bytes)
        self._trace([attempt.replica], received_bytes, now)
        for other in self.open.values():
            if other.began < attempt.began:
                self.group.lost(other.replica, now, now - other.began)
            else:
                self.group.withdrawn(other.replica)
        self.open.clear()

    def unanswered(self, status: Status, now: float, *, is_lost: bool) -> None:
        """Record that no replica answers; `is_lost` if default rows replace the rows."""
        self.is_lost = is_lost
        if not is_lost:
            self.group.unanswered(status.code)
        self._trace(self.tried, 0, now, status)

    def _trace(
        self,
        replicas: Sequence[Replica],
        received_bytes: int,
        now: float,
        status: Status = _ANSWERED,
    ) -> None:
        if self.traced is None:
            return
        asked = len(self.tried)
        self.traced.hosts.append(
            HostSpan(
                self.traced.trace.trace_id,
                self.span_id,
                self.group.host,
                ", ".join(one.address for one in replicas),
                self.began,
                now,
                asked * len(self.message),
                received_bytes,
                self.hedges,
                max(0, asked - 1 - self.hedges),
                status.code.name,
                status.message,
            )
        )
