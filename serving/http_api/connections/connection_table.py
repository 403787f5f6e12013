"""Connections by address and stage: limits, timeouts and evictions."""

from collections import Counter
from collections.abc import Iterator
from enum import Enum, auto
from typing import Protocol

from serving.http_api.connections.limits import HttpLimits

# Connections beyond the limits, which may only call the probes.
PROBE_PLACES = 64
# Above this time a body may be evicted where memory is short.
_SLOW_SECONDS = 10.0


class Stage(Enum):
    """State of a connection, each with its own timeout; an answer in progress has none."""

    HEAD = auto()
    IDLE = auto()
    BODY = auto()
    # The client reads the answer.
    READER = auto()
    # The connection closes. Its client may still send.
    END = auto()


class Drop(Enum):
    """Reason for dropping a connection or its request."""

    CONNECTIONS = "connections"
    ADDRESS = "address"
    DESCRIPTORS = "descriptors"
    HEAD_LATE = "head_late"
    BODY_LATE = "body_late"
    UNREAD = "unread"
    MALFORMED = "malformed"


LATE = {Stage.HEAD: Drop.HEAD_LATE, Stage.BODY: Drop.BODY_LATE, Stage.READER: Drop.UNREAD}


class Member(Protocol):
    """A connection in the table; `only_probes`: in a place for probes."""

    address: str
    only_probes: bool

    @property
    def unsent(self) -> int:
        """Bytes of an answer that its client has not read."""
        ...

    def late(self, stage: Stage) -> None:
        """Handles a stage's timeout."""
        ...

    def abort(self) -> None:
        """Closes the connection at once."""
        ...

    def stop(self) -> None:
        """Closes the connection after the answer in progress."""
        ...


class ConnectionTable:
    """Connections of one process. All calls come from one event loop."""

    def __init__(self, limits: HttpLimits) -> None:
        self._most = limits.max_connections
        self._most_of_address = limits.max_address_connections
        self._seconds = {
            Stage.HEAD: limits.header_seconds,
            Stage.IDLE: limits.idle_seconds,
            Stage.BODY: limits.body_seconds,
            Stage.READER: limits.body_seconds,
            Stage.END: min(1.0, limits.body_seconds),
        }
        # Timeouts in ascending order, since a stage has one length.
        self._ends: dict[Stage, dict[Member, float]] = {stage: {} for stage in Stage}
        self._stages: dict[Member, Stage | None] = {}
        self._of_address: Counter[str] = Counter()
        self._probing: set[Member] = set()

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._stages))

    def too_many(self, address: str) -> Drop | None:
        """The limit that another connection of an address would exceed, or None."""
        if self._of_address[address] >= self._most_of_address:
            return Drop.ADDRESS
        if len(self._stages) - len(self._probing) >= self._most:
            return Drop.CONNECTIONS
        return None

    def next_to_go(self, reason: Drop, address: str) -> Member | None:
        """Connection to evict for another one of an address; None: all have answers in progress.

        It has waited longest for its client, and is of the address with the most connections.
        """
        if reason is Drop.ADDRESS:
            return self._longest_waiting(address)
        (crowd, _), *_ = self._of_address.most_common(1) or [("", 0)]
        return self._longest_waiting(crowd) or self._longest_waiting(None)

    def probe_to_go(self) -> Member | None:
        """Probe connection to evict for another one; None if a place is free, or all are in use."""
        return next((m for m in self._ends[Stage.HEAD] if m.only_probes), None)

    @property
    def has_probe_place(self) -> bool:
        """True if a place for probes is free."""
        return len(self._probing) < PROBE_PLACES

    def enter(self, member: Member, now: float) -> None:
        """Adds a connection, whose first request's head is due from now on."""
        self._stages[member] = None
        if member.only_probes:
            self._probing.add(member)
        else:
            self._of_address[member.address] += 1
        self.move(member, Stage.HEAD, now)

    def move(self, member: Member, stage: Stage | None, now: float) -> None:
        """Starts a stage of a connection, if it is in the table; None: an answer is in progress."""
        if member not in self._stages:
            return
        before = self._stages[member]
        if before is not None:
            del self._ends[before][member]
        self._stages[member] = stage
        if stage is not None:
            self._ends[stage][member] = now + self._seconds[stage]

    def leave(self, member: Member) -> None:
        """Removes a connection, if it is in the table."""
        if member not in self._stages:
            return
        self.move(member, None, 0.0)
        del self._stages[member]
        if member.only_probes:
            self._probing.discard(member)
        else:
            self._of_address[member.address] -= 1
            if not self._of_address[member.address]:
                del self._of_address[member.address]

    def late(self, now: float) -> list[tuple[Member, Stage]]:
        """Connections that have timed out, and in which stage."""
        found = []
        for stage, ends in self._ends.items():
            for member, end in ends.items():
                if end > now:
                    break
                found.append((member, stage))
        return found

    def slow_body(self, now: float) -> Member | None:
        """The connection with the slowest body, if that is slow."""
        end = now + self._seconds[Stage.BODY] - _SLOW_SECONDS
        return next((m for m, ends in self._ends[Stage.BODY].items() if ends <= end), None)

    def unread(self, most: int) -> list[Member]:
        """Connections with unread answers, oldest first, beyond `most` bytes in all."""
        total, found = 0, []
        for member in reversed(self._ends[Stage.READER]):
            total += member.unsent
            # The latest one stays, however large.
            if total > most and total > member.unsent:
                found.append(member)
        return found

    def _longest_waiting(self, address: str | None) -> Member | None:
        found: list[tuple[float, Member]] = []
        for stage, ends in self._ends.items():
            for member, end in ends.items():
                if not member.only_probes and address in (None, member.address):
                    found.append((end - self._seconds[stage], member))
                    break
        return min(found, key=lambda pair: pair[0])[1] if found else None
