"""Counters of a version's tables with rows in tiers."""

from collections.abc import Mapping, Sequence

from kernels.tiers.native_tiers import queued_reads
from kernels.tiers.row_tier import RowTier
from serving.metrics.cells import MetricCells
from serving.metrics.families.family import FamilyBlock
from serving.metrics.families.tier_families import (
    IDS_CACHED,
    IDS_PINNED,
    IDS_READ,
    ROW_MEMORY_BYTES,
    ROW_READ_BYTES,
    ROW_READ_SECONDS,
    ROW_READS,
    ROW_READS_FAILED,
    ROW_READS_QUEUED,
)
from serving.metrics.version_info import named_places


class TierMetrics:
    """Counters of tiers, updated periodically."""

    def __init__(self, cells: MetricCells, block: FamilyBlock) -> None:
        self._cells = cells
        self._counters = [
            block.cell(family)
            for family in (
                *(IDS_PINNED, IDS_CACHED, IDS_READ),
                *(ROW_READS, ROW_READ_BYTES, ROW_READS_FAILED),
            )
        ]
        self._memory = block.cell(ROW_MEMORY_BYTES)
        self._seconds = block.cell(ROW_READ_SECONDS)
        self._queued = block.cell(ROW_READS_QUEUED)

    def count(self, tiers: Mapping[str, Sequence[RowTier]]) -> None:
        """Adds the work since the last call, of all tables of `VersionInfo.tiered`."""
        places = named_places(list(tiers))
        memory = dict.fromkeys(places.values(), 0)
        # The tiers count without the lock.
        with self._cells.lock:
            own = self._cells.own
            for table, of_table in tiers.items():
                place = places[table]
                for tier in of_table:
                    new, held_rows = tier.new_counts()
                    counts = (
                        *(new.hot, new.cached, new.missed),
                        *(new.reads, new.read_bytes, new.failed_reads),
                    )
                    for cell, count in zip(self._counters, counts, strict=True):
                        own[cell + place] += count
                    for bucket, count in enumerate(new.latencies):
                        own[self._seconds + bucket] += count
                    own[self._seconds + len(new.latencies)] += new.nanoseconds / 1e9
                    memory[place] += held_rows * tier.row_bytes
            for place, held in memory.items():
                own[self._memory + place] = held
            own[self._queued] = queued_reads()
