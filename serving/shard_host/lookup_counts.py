"""What lookups took, and which were refused."""

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
    """Of lookups that were answered.

    Attributes:
        row_bytes: stored bytes of the rows that were read.
        received_bytes: of the lookups' messages.
        seconds: of all lookups.
        buckets: lookups by time, as `HOST_LOOKUP_SECONDS` has them.
    """

    rows: int = 0
    row_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    buckets: tuple[int, ...] = (0,) * _BUCKETS

    # Numbers, as compiled code writes them.
    LENGTH: ClassVar = 5 + _BUCKETS

    @property
    def lookups(self) -> int:
        """How many they are."""
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
    """The counts of one lookup.

    Args:
        received: bytes of its message.
        sent: bytes of its answer.
    """
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
        """Counts a lookup."""
        with self._lock:
            self._answered += one

    def refused(self, code: StatusCode, count: int = 1) -> None:
        """Counts lookups that got no sums."""
        with self._lock:
            self._refused[code] += count

    def read(self) -> tuple[LookupCounts, Counter[StatusCode]]:
        """What was answered, and how many were refused, by code."""
        with self._lock:
            return self._answered, self._refused.copy()
