"""A version's sequence positions, and the cached states of its users."""

from serving.metrics.cells import MetricCells
from serving.metrics.families.family import FamilyBlock
from serving.metrics.families.sequence_families import (
    SEQUENCE_POSITIONS,
    USER_CACHE_BYTES,
    USER_EVICTIONS,
    USER_STATES,
)
from sharded_infer.lookups.lookup_work import LookupWork


class SequenceMetrics:
    """Counters of batches with sequences. The caller holds the process's lock."""

    def __init__(self, cells: MetricCells, block: FamilyBlock) -> None:
        self._cells = cells
        self._positions = block.cell(SEQUENCE_POSITIONS)
        self._users = block.cell(USER_STATES)
        self._evicted = block.cell(USER_EVICTIONS)
        self._bytes = block.cell(USER_CACHE_BYTES)

    def count(self, work: LookupWork) -> None:
        """Counts a batch."""
        own = self._cells.own
        for first, counts in ((self._positions, work.positions), (self._users, work.users)):
            for at, count in enumerate(counts):
                own[first + at] += count

    def cached(self, held_bytes: int, evicted: int) -> None:
        """Sets the bytes of this process's cache, and adds states evicted since the last call."""
        own = self._cells.own
        own[self._bytes] = held_bytes
        own[self._evicted] += evicted
