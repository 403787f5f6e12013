"""Choice, ejection and hedging of the replicas of a shard host.

choice: of two random replicas, the one with fewer calls in flight x recent latency
    (Mitzenmacher, "The power of two choices in randomized load balancing", 1996)
ejection: after failures in a row others are preferred, each time for longer, and until it has
    answered a check; an ejected replica that answers checks is asked where all others are silent
hedging: a lookup that is late beside the group's latencies is asked of another replica (Dean and
    Barroso, "The tail at scale", 2013); each lookup earns a twentieth of an extra call
"""

import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from serving.metrics.families.family import Family
from serving.metrics.families.shard_families import LOST_CODES, SHARD_LOOKUP_SECONDS
from serving.protocol.lookups.lookup_messages import Described
from serving.remote_lookups.group_counts import GroupCounts
from serving.status import StatusCode

# Failures in a row, lost hedges included.
MOST_FAILURES = 5
LEAST_SILENT_SECONDS = 0.25
LEAST_EJECTED_SECONDS, MOST_EJECTED_SECONDS = 1.0, 30.0
HEDGE_SHARE = 0.05
# Extra calls that a quiet time leaves for a bad one.
MOST_CREDIT = 50.0
LEAST_LATE_SECONDS = 0.001
# Until enough lookups are known: far above a lookup's time, far below requests' waits.
FIRST_LATE_SECONDS = 0.1
# A lookup is late if it takes longer than this share of the last ones, by this factor.
_LATE_SHARE, _LATE_FACTOR = 0.95, 1.25
_KEPT, _LEAST_KEPT, _SORT_EVERY = 256, 32, 16
_LATENCY_WEIGHT = 0.1
# Time in which the latency of a replica that is not called is forgotten.
_FORGET_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class Replica:
    """State of a replica, changed by its group.

    The latency is an average of the last answers, 0 if unknown. Failures are in a row; a silent
    replica has not answered since as many as eject. `held` is None before a check.
    """

    address: str
    in_flight: int = 0
    latency: float = 0.0
    sampled_at: float = 0.0
    answered_at: float = 0.0
    failures: int = 0
    is_silent: bool = False
    is_ejected: bool = False
    ejected_until: float = 0.0
    ejected_seconds: float = 0.0
    held: frozenset[Described] | None = None

    def holds(self, wanted: Described | None) -> bool:
        """True if it may serve a version."""
        return wanted is None or self.held is None or wanted in self.held

    def load(self, now: float) -> float:
        """Estimated seconds of a call."""
        forgotten = math.exp(min(0.0, self.sampled_at - now) / _FORGET_SECONDS)
        return (self.in_flight + 1) * self.latency * forgotten


class ReplicaGroup:
    """The replicas of one shard host, shared by the threads of a process. Time is passed in.

    Sharing lets all threads use what one of them observes. `host` is its number in the plans.
    """

    def __init__(self, host: int, replicas: Sequence[Replica], random: Random) -> None:
        self.host = host
        self.replicas = tuple(replicas)
        self.counts = GroupCounts()
        self._random = random
        self._lock = threading.Lock()
        # Enough for a replica that falls silent at once: as many lost hedges eject it.
        self._credit = float(MOST_FAILURES)
        self._last: deque[float] = deque(maxlen=_KEPT)
        self._unsorted = 0
        self._late_after = FIRST_LATE_SECONDS

    def with_replicas(self, replicas: Sequence[Replica]) -> "ReplicaGroup":
        """The group with other replicas; it keeps the counts and the latencies."""
        made = ReplicaGroup(self.host, replicas, self._random)
        # Replicas may be in both.
        with self._lock:
            made._lock, made.counts = self._lock, self.counts
            made._credit, made._last, made._late_after = self._credit, self._last, self._late_after
        return made

    def begin(self, now: float, wanted: Described | None) -> Replica | None:
        """The first replica of a lookup for a version (None: any); None if no replica holds it."""
        with self._lock:
            self.counts.lookups += 1
            if self._credit < MOST_CREDIT:
                self._credit += HEDGE_SHARE
            return self._chosen(now, [one for one in self.replicas if one.holds(wanted)])

    def retry(
        self, now: float, wanted: Described | None, tried: Collection[Replica]
    ) -> Replica | None:
        """Another replica, after those tried have failed; None if there is none."""
        with self._lock:
            chosen = self._chosen(now, self._usable(wanted, tried))
            self.counts.retries += chosen is not None
            return chosen

    def hedge(
        self, now: float, wanted: Described | None, tried: Collection[Replica]
    ) -> Replica | None:
        """Another replica for a late lookup; None without a healthy one, or without credit.

        If all tried replicas have been ejected since, it is no hedge and needs no credit.
        """
        with self._lock:
            usable = [one for one in self._usable(wanted, tried) if not one.is_silent]
            if not usable:
                return None
            if all(one.is_ejected for one in tried):
                self.counts.retries += 1
                return self._chosen(now, usable)
            if self._credit < 1.0:
                return None
            self._credit -= 1.0
            self.counts.hedges += 1
            return self._chosen(now, usable)

    def late_after(self) -> float:
        """Seconds after which a lookup is late."""
        return self._late_after

    def is_lost(self) -> bool:
        """True if no replica answers lookups or checks, so optional calls need not wait."""
        return all(one.is_silent for one in self.replicas)

    def defaulted(self, rows: int) -> None:
        """Count default rows that replaced rows."""
        with self._lock:
            self.counts.default_rows += rows

    def counted(self) -> dict[Family, list[float]]:
        """Counts as `GroupCounts.by_family`."""
        with self._lock:
            return self.counts.by_family()

    def answered(self, replica: Replica, now: float, seconds: float) -> None:
        """Record a replica's answer, `seconds` after its call."""
        with self._lock:
            replica.in_flight -= 1
            replica.failures, replica.answered_at = 0, now
            replica.is_silent = False
            if now > replica.ejected_until + replica.ejected_seconds:
                replica.ejected_seconds = 0.0
            self._sample(replica, now, seconds)

    def looked_up(self, seconds: float, sent_bytes: int, received_bytes: int) -> None:
        """Record a lookup's answer, `seconds` after its first call, with bytes to all replicas."""
        with self._lock:
            self.counts.sent_bytes += sent_bytes
            self.counts.received_bytes += received_bytes
            self.counts.seconds += seconds
            self.counts.buckets[bisect_left(SHARD_LOOKUP_SECONDS.boundaries, seconds)] += 1
            self._last.append(seconds)
            self._unsorted += 1
            if self._unsorted >= _SORT_EVERY and len(self._last) >= _LEAST_KEPT:
                self._unsorted = 0
                ordered = sorted(self._last)
                late = _LATE_FACTOR * ordered[int(_LATE_SHARE * len(ordered))]
                self._late_after = max(LEAST_LATE_SECONDS, late)

    def unanswered(self, code: StatusCode) -> None:
        """A lookup has failed its batch; refusals of the request itself are not counted."""
        if code.name not in LOST_CODES:
            return
        with self._lock:
            self.counts.lost[LOST_CODES.index(code.name)] += 1

    def failed(self, replica: Replica, now: float) -> None:
        """Record a replica's error, or its missed deadline."""
        with self._lock:
            replica.in_flight -= 1
            self.counts.failures += 1
            self._count_failure(replica, now)

    def lost(self, replica: Replica, now: float, seconds: float) -> None:
        """Record the cancelled call of a late lookup, `seconds` after it: another was faster."""
        with self._lock:
            replica.in_flight -= 1
            replica.sampled_at = now
            replica.latency = max(replica.latency, seconds)
            # A pause is weaker evidence than silence.
            if now >= replica.answered_at + LEAST_SILENT_SECONDS:
                self._count_failure(replica, now)

    def withdrawn(self, replica: Replica) -> None:
        """Record the end of a call that is no evidence about its replica."""
        with self._lock:
            replica.in_flight -= 1

    def dropped(self, replica: Replica, wanted: Described | None) -> None:
        """Record a replica's answer that it does not hold the version."""
        with self._lock:
            replica.in_flight -= 1
            if replica.held is not None and wanted is not None:
                replica.held -= {wanted}

    def checked(self, replica: Replica, now: float, held: frozenset[Described] | None) -> None:
        """Record the end of a check; `held` is None without an answer."""
        with self._lock:
            if held is None:
                self._count_failure(replica, now)
                return
            replica.held, replica.is_silent = held, False
            if replica.is_ejected and now >= replica.ejected_until:
                replica.is_ejected = False
                replica.failures, replica.latency = 0, 0.0

    def _usable(self, wanted: Described | None, tried: Collection[Replica]) -> list[Replica]:
        return [one for one in self.replicas if one not in tried and one.holds(wanted)]

    def _chosen(self, now: float, usable: list[Replica]) -> Replica | None:
        """One of those that may be asked; silent and ejected ones where there are no others."""
        pool = usable
        if len(usable) > 1:
            answering = [one for one in usable if not one.is_silent]
            pool = [one for one in answering if not one.is_ejected] or answering or usable
        if not pool:
            return None
        chosen = pool[0]
        if len(pool) > 1:
            # `sample` takes longer than everything else.
            first, second = pool if len(pool) == 2 else self._random.sample(pool, 2)
            # Break ties at random.
            if self._random.random() < 0.5:
                first, second = second, first
            chosen = second if _is_lighter(second, first, now) else first
        chosen.in_flight += 1
        return chosen

    def _sample(self, replica: Replica, now: float, seconds: float) -> None:
        replica.sampled_at = now
        known = replica.latency
        replica.latency = seconds if not known else known + _LATENCY_WEIGHT * (seconds - known)

    def _count_failure(self, replica: Replica, now: float) -> None:
        replica.failures += 1
        replica.is_silent = replica.failures >= MOST_FAILURES
        if replica.is_ejected:
            # A failed check makes it longer.
            if now >= replica.ejected_until:
                self._eject(replica, now)
        elif replica.is_silent and self._has_others(replica):
            self.counts.ejections += 1
            self._eject(replica, now)

    def _eject(self, replica: Replica, now: float) -> None:
        longer = max(LEAST_EJECTED_SECONDS, 2 * replica.ejected_seconds)
        replica.ejected_seconds = min(MOST_EJECTED_SECONDS, longer)
        replica.ejected_until = now + replica.ejected_seconds
        replica.is_ejected = True

    def _has_others(self, replica: Replica) -> bool:
        return any(one is not replica and not one.is_ejected for one in self.replicas)


def _is_lighter(one: Replica, other: Replica, now: float) -> bool:
    # A replica's time is unknown until its first answer.
    if not one.latency or not other.latency:
        return one.in_flight < other.in_flight
    return one.load(now) < other.load(now)
