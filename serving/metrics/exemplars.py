"""The last traced request of each latency bucket.

Each bucket has five cells: a sequence number, seconds, the time, and the trace's 16 bytes. The
number is odd during a write and changes after it; a reader compares it before and after to detect
a partial read. A writer killed midway leaves it odd, and the next writer makes it odd again.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from serving.metrics.cells import CELL_BYTES, MetricCells

_CELLS = 5
_FIELDS = struct.Struct("=ddd16s")
_TIMED = struct.Struct("=dd16s")


@dataclass(frozen=True, slots=True)
class Exemplar:
    """A traced request: trace id in 32 hexadecimal digits, latency, seconds since 1970."""

    trace_id: str
    seconds: float
    timestamp: float


class Exemplars:
    """A version's exemplars, over all processes."""

    def __init__(self, cells: MetricCells, buckets: int) -> None:
        self._cells = cells
        self._buckets = buckets
        self._first = cells.allocate(buckets * _CELLS)

    def put(self, bucket: int, seconds: float, trace_id: bytes, now: float) -> None:
        """Replaces the bucket's last request, at `now` since 1970. The caller holds the lock."""
        own, first = self._cells.own, self._first + bucket * _CELLS
        begun = int(own[first]) | 1 if int(own[first]) % 2 == 0 else int(own[first]) + 2
        own[first] = begun
        self._cells.write_bytes(first + 1, _TIMED.pack(seconds, now, trace_id))
        own[first] = begun + 1

    def last(self) -> Sequence[Exemplar | None]:
        """Last request of each bucket; None if there is none, or it is being written."""
        count = self._buckets * _CELLS
        # Only sequence numbers are used of the first and last copy, as a copy's read order is
        # unspecified.
        read = (self._cells.contents(self._first, count) for _ in range(3))
        latest: list[Exemplar | None] = [None] * self._buckets
        for before, row, after in zip(*read, strict=True):
            for bucket in range(self._buckets):
                at = bucket * _FIELDS.size
                number, seconds, timestamp, trace_id = _FIELDS.unpack_from(row, at)
                numbers = {copy[at : at + CELL_BYTES] for copy in (before, row, after)}
                if not number or number % 2 or len(numbers) > 1:
                    continue
                kept = latest[bucket]
                if kept is None or kept.timestamp < timestamp:
                    latest[bucket] = Exemplar(trace_id.hex(), seconds, timestamp)
        return latest
