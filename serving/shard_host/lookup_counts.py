"""Work of lookups, and refused lookups."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from serving.metrics.families.shard_host_families import HOST_LOOKUP_SECONDS
from serving.status import StatusCode
from sharded_infer.lookups.lookup_work import StepWork

_BUCKETS = HOST_LOOKUP_SECONDS.buckets


@dataclass(frozen=True, slots=True)
class LookupCounts:
    """Counts of answered lookups, by time in buckets of `HOST_LOOKUP_SECONDS`; `rows` were read."""

    rows: int = 0
    row_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    buckets: tuple[int, ...] = (0,) * _BUCKETS

    # Numbers in the array of compiled code.
    LENGTH: ClassVar = 5 + _BUCKETS

    @property
    def lookups(self) -> int:
        """Number of lookups."""
        return sum(self.buckets)

    def __add__(self, other: "LookupCounts") -> "LookupCounts":
        return LookupCounts(
            self.rows + other.rows,
            self.row_bytes + other.row_bytes,
            self.received_bytes + other.received_bytes,
            self.sent_bytes + other.sent_bytes,
            self.seconds + other.seconds,
            tuple(map(sum, zip(self.buckets, other.buckets, strict=True))),
        )


def counts_of(work: Sequence[StepWork], received: int, sent: int, seconds: float) -> LookupCounts:
    """Counts of one lookup; `received` and `sent` are bytes."""
    bucket = bisect_left(HOST_LOOKUP_SECONDS.boundaries, seconds)
    return LookupCounts(
        sum(rows for _, rows, _, _ in work),
        sum(row_bytes for _, _, row_bytes, _ in work),
        received,
        sent,
        seconds,
        tuple(int(place == bucket) for place in range(_BUCKETS)),
    )


class LookupCounter:
    """Counts the lookups that Python answers or refuses; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered = LookupCounts()
        self._refused: Counter[StatusCode] = Counter()

    def answered(self, one: LookupCounts) -> None:
        """Count an answered lookup."""
        with self._lock:
            self._answered += one

    def refused(self, code: StatusCode, count: int = 1) -> None:
        """Count refused lookups."""
        with self._lock:
            self._refused[code] += count

    def read(self) -> tuple[LookupCounts, Counter[StatusCode]]:
        """Counts of answered lookups, and of refused ones by code."""
        with self._lock:
            return self._answered, self._refused.copy()
