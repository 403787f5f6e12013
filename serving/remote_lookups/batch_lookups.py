"""Lookups of one batch: calls of each host, and of another replica if one fails or is late."""

import math
from collections.abc import Mapping, Sequence
from time import monotonic

from serving.errors import DeadlineError
from serving.protocol.lookups.compiled_reader import read_answer
from serving.protocol.lookups.lookup_messages import Leases, write_describe
from serving.remote_lookups.host_clients import DESCRIBE, LOOKUP, ThreadClient
from serving.remote_lookups.host_lookup import Attempt, HostLookup
from serving.remote_lookups.replica_checks import take_check
from serving.remote_lookups.replica_group import Replica
from serving.status import Status, StatusCode, status_of
from serving.transport.http2_client import OutgoingCall
from sharded_infer.errors import (
    InternalError,
    RequestTooLargeError,
    ShardedInferError,
    ShardHostError,
)
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.lookups.shard_hosts import GroupAnswer

_FOREVER = 1e9
# Until a late lookup without another replica is checked again.
_AGAIN_SECONDS = 0.005
# Of a check of a replica that did not hold the version.
_CHECK_SECONDS = 1.0


class BatchLookups:
    """The `StartedLookup` of remote hosts, on the connections of the batch's thread."""

    def __init__(self, mine: ThreadClient, now: float, deadline: float) -> None:
        """Call no host yet; the first request's deadline is on the monotonic clock."""
        self._mine, self._client = mine, mine.client
        self._until = min(deadline, now + mine.hosts.seconds)
        self._is_requests_time = deadline <= self._until
        self._lookups: list[HostLookup] = []
        self._open: dict[int, HostLookup] = {}

    def add(self, lookup: HostLookup) -> None:
        """Add a host for `send` to call."""
        self._lookups.append(lookup)

    def send(self, now: float) -> None:
        """Call all hosts; raise ShardHostError if no replica of a host holds the version."""
        self._call([one for one in self._lookups if one.chosen is not None], now)
        for lookup in self._lookups:
            if not (lookup.open or lookup.is_lost):
                self._check_others(lookup, now)

    def finish(self) -> Mapping[int, Sequence[GroupAnswer]]:
        """Return answers as `StartedLookup.finish`."""
        try:
            while self._open:
                late_at = min(lookup.late_at for lookup in self._open.values())
                ended = self._client.wait(min(_FOREVER, max(0.0, late_at - monotonic())))
                now = monotonic()
                for number in ended:
                    # Another replica's answer may have ended the lookup.
                    lookup = self._open.pop(number, None)
                    if lookup is None:
                        continue
                    if number in lookup.checks:
                        self._take_check(lookup, number, now)
                    else:
                        self._take(lookup, number, now)
                if not ended:
                    self._ask_others(now)
        finally:
            self.cancel()
        for lookup in self._lookups:
            if lookup.is_lost:
                lookup.group.defaulted(lookup.rows)
        return {one.group.host: one.answers for one in self._lookups if not one.is_lost}

    def cancel(self) -> None:
        """Cancel as `StartedLookup.cancel`."""
        for lookup in self._lookups:
            lookup.give_up()
        self._open.clear()
        # Cancels unfinished calls.
        self._client.clear()

    def _call(self, lookups: Sequence[HostLookup], now: float) -> None:
        positions, seconds = self._mine.hosts.positions, self._until - now
        numbers = self._client.start(
            [
                OutgoingCall(
                    positions[one.chosen_replica],
                    one.message,
                    seconds,
                    LOOKUP,
                    traceparent=one.traceparent,
                )
                for one in lookups
            ]
        )
        for number, lookup in zip(numbers, lookups, strict=True):
            lookup.sent(number, now)
            self._open[number] = lookup

    def _take(self, lookup: HostLookup, number: int, now: float) -> None:
        attempt = lookup.open.pop(number)
        answer = self._client.result(number)
        status = answer.status
        if status is None:
            try:
                lookup.answers = read_answer(answer.message, lookup.groups)
            except UnknownIdError as error:
                # Its replicas would refuse it too.
                lookup.answered(attempt, len(answer.message), now)
                raise UnknownIdError(error.where, lookup.group.host) from None
            except InternalError as error:
                status = Status(StatusCode.INTERNAL, str(error))
        if status is not None:
            return self._failed(lookup, attempt, status, now)
        for other in lookup.open:
            self._client.cancel(other)
            del self._open[other]
        return lookup.answered(attempt, len(answer.message), now)

    def _failed(self, lookup: HostLookup, attempt: Attempt, status: Status, now: float) -> None:
        lookup.failed(attempt, status.code, now)
        words = self._named(attempt.replica, status.message)
        is_late = status.code is StatusCode.DEADLINE_EXCEEDED or now >= self._until
        lookup.errors.append(words if is_late else f"{words} ({status.code.name})")
        if lookup.open:
            return
        errors = "; ".join(lookup.errors)
        if is_late:
            # Requests whose own time has ended get no answer, with or without its rows.
            _lose(lookup, DeadlineError(errors), now, may_lose=not self._is_requests_time)
            return
        if status.code is StatusCode.INVALID_ARGUMENT:
            # The host is up, and refuses a call that all its replicas would refuse.
            _lose(lookup, ShardHostError(errors), now, may_lose=False)
            return
        lookup.chosen = lookup.group.retry(now, lookup.wanted, lookup.tried)
        if lookup.chosen is None and status.code is StatusCode.RESOURCE_EXHAUSTED:
            # Too large for all of them, or for the front.
            _lose(lookup, RequestTooLargeError(errors), now, may_lose=False)
            return
        self._call_chosen(lookup, now)

    def _named(self, replica: Replica, words: str) -> str:
        name = self._mine.hosts.name(replica)
        return words if words.startswith(name) else f"{name}: {words}"

    def _call_chosen(self, lookup: HostLookup, now: float) -> None:
        if lookup.chosen is not None:
            self._call([lookup], now)
        else:
            self._check_others(lookup, now)

    def _check_others(self, lookup: HostLookup, now: float) -> None:
        """Check the replicas for the version: one may have loaded it since its last check."""
        others = [r for r in lookup.group.replicas if r not in (*lookup.tried, *lookup.checked)]
        if not others:
            _lose(lookup, ShardHostError("; ".join(lookup.errors)), now)
            return
        lookup.checked += others
        lookup.late_at = math.inf
        message, seconds = write_describe("", Leases()), min(_CHECK_SECONDS, self._until - now)
        positions = self._mine.hosts.positions
        numbers = self._client.start(
            [OutgoingCall(positions[one], message, seconds, DESCRIBE) for one in others]
        )
        lookup.checks = dict(zip(numbers, others, strict=True))
        self._open.update(dict.fromkeys(numbers, lookup))

    def _take_check(self, lookup: HostLookup, number: int, now: float) -> None:
        replica = lookup.checks.pop(number)
        error = take_check(lookup.group, replica, self._client.result(number), now)
        if error or not replica.holds(lookup.wanted):
            lookup.errors.append(self._named(replica, error or _not_held(lookup)))
        lookup.chosen = lookup.group.retry(now, lookup.wanted, lookup.tried)
        if lookup.chosen is not None:
            for other in lookup.checks:
                self._client.cancel(other)
                del self._open[other]
            lookup.checks.clear()
            self._call([lookup], now)
        elif not lookup.checks:
            self._check_others(lookup, now)

    def _ask_others(self, now: float) -> None:
        # A lookup that two replicas are called for is in it twice.
        late = {lookup: None for lookup in self._open.values() if lookup.late_at <= now}
        for lookup in late:
            chosen = lookup.group.hedge(now, lookup.wanted, lookup.tried)
            if chosen is not None and not self._mine.may_cancel(now):
                lookup.group.withdrawn(chosen)
                chosen = None
            lookup.chosen = chosen
            if chosen is None:
                lookup.late_at = now + _AGAIN_SECONDS
            else:
                lookup.hedges += 1
                self._call([lookup], now)


def _lose(
    lookup: HostLookup, error: ShardedInferError, now: float, *, may_lose: bool = True
) -> None:
    """Go on without the host, if default rows can replace its rows; otherwise raise the error."""
    is_lost = may_lose and lookup.may_lose
    lookup.unanswered(status_of(error), now, is_lost=is_lost)
    if not is_lost:
        raise error


def _not_held(lookup: HostLookup) -> str:
    if lookup.wanted is None:
        raise InternalError("a check of a replica that may be asked")
    key = lookup.wanted.key
    return f"it does not hold model {key.model!r} version {key.version}"
