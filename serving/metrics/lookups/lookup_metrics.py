"""A version's lookups and scores."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.abi.tiers import tier_queued
from kernels.tiers.row_tier import RowTier
from serving.metrics.cells import MetricCells
from serving.metrics.families.family import FamilyBlock
from serving.metrics.families.model_families import (
    BROADCAST_ROWS_SAVED,
    HOT_ROW_SHARE,
    LOADED,
    OUTPUT_PLACES,
    RANK_BUSY_SECONDS,
    RANK_MEMORY_BYTES,
    RANK_PLACES,
    RANK_ROW_BYTES,
    RANK_ROWS,
    SCORE_BOUNDARIES,
    SCORES,
    SEQUENCE_POSITIONS,
    USER_CACHE_BYTES,
    USER_EVICTIONS,
    USER_POSITIONS,
    USER_STATES,
)
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
from serving.metrics.lookups.hot_rows import HotRows
from serving.metrics.lookups.mapped_ids import MappedIds
from serving.metrics.version_info import named_places
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.lookups.lookup_work import LookupWork

# One of so many batches is sampled for its scores, and for its rows.
SCORES_EVERY, _ROWS_EVERY = 16, 64
_MOST_SCORES = 1024
_LAST_RANK = len(RANK_PLACES) - 1
_BOUNDARIES = np.array(SCORE_BOUNDARIES)


class LookupMetrics:
    """A version's ranks, shared and empty bags, raw ids, hot rows and scores."""

    def __init__(self, cells: MetricCells, block: FamilyBlock, mapped_ids: MappedIds) -> None:
        self._cells = cells
        self._mapped_ids = mapped_ids
        self._rows = block.cell(RANK_ROWS)
        self._row_bytes = block.cell(RANK_ROW_BYTES)
        self._busy_seconds = block.cell(RANK_BUSY_SECONDS)
        self._memory_bytes = block.cell(RANK_MEMORY_BYTES)
        self._saved = block.cell(BROADCAST_ROWS_SAVED)
        self._hot_row_share = block.cell(HOT_ROW_SHARE)
        self._loaded = block.cell(LOADED)
        self._scores = block.cell(SCORES)
        self._positions = block.cell(SEQUENCE_POSITIONS)
        self._users = block.cell(USER_STATES)
        self._user_positions = block.cell(USER_POSITIONS)
        self._evicted = block.cell(USER_EVICTIONS)
        self._user_bytes = block.cell(USER_CACHE_BYTES)
        self.tiers = TierMetrics(cells, block)
        self._batches = 0
        self.rows = HotRows()

    def reset(self) -> None:
        """Resets the counters for another version. The caller does not hold the lock."""
        with self._cells.lock:
            self._batches = 0
        self.rows.clear()

    def looked_up(
        self, work: LookupWork, batch: ModelInput, scores: Sequence[NDArray[np.float32]]
    ) -> None:
        """Counts a batch's lookups; some batches are sampled. `scores` are one request's."""
        cells = self._cells
        with cells.lock:
            own = cells.own
            for rank, rows, row_bytes, seconds in work.steps:
                place = rank if rank < _LAST_RANK else _LAST_RANK
                own[self._rows + place] += rows
                own[self._row_bytes + place] += row_bytes
                own[self._busy_seconds + place] += seconds
            if work.rows_saved:
                own[self._saved] += work.rows_saved
            for first, counts in (
                (self._positions, work.positions),
                (self._users, work.users[:2]),
                (self._user_positions, work.users[2:]),
            ):
                for cell, count in enumerate(counts, first):
                    own[cell] += count
            self._mapped_ids.count(batch)
            number = self._batches
            self._batches = number + 1
        if number % SCORES_EVERY == 0:
            self._sample_scores(scores)
        if number % _ROWS_EVERY == 0:
            self.rows.take(batch)

    def hot_rows(self, share: float) -> None:
        """Sets the share of accesses to hot rows, from `rows`; 0 for an unloaded version."""
        cells = self._cells
        with cells.lock:
            cells.own[self._hot_row_share] = share if cells.own[self._loaded] else 0.0

    def cached_users(self, held_bytes: int, evicted: int) -> None:
        """Sets the bytes of the version's states; adds states evicted since the last call."""
        cells = self._cells
        with cells.lock:
            cells.own[self._user_bytes] = held_bytes
            cells.own[self._evicted] += evicted

    def placed(self, rank_bytes: Sequence[int]) -> None:
        """Sets the bytes on each rank, later ones summed up. The caller holds the lock."""
        for place in range(len(RANK_PLACES)):
            held = rank_bytes[place:] if place == _LAST_RANK else rank_bytes[place : place + 1]
            self._cells.own[self._memory_bytes + place] = sum(held)

    def _sample_scores(self, scores: Sequence[NDArray[np.float32]]) -> None:
        counted = []
        for score in scores[: len(OUTPUT_PLACES)]:
            some = score.ravel()[:: 1 + score.size // _MOST_SCORES]
            # NaN sort last, so they are counted above all boundaries.
            places = np.searchsorted(_BOUNDARIES, some)
            counted.append(np.bincount(places, minlength=SCORES.buckets))
        cells = self._cells
        with cells.lock:
            own = np.frombuffer(cells.own.cast("B"))
            for output, counts in enumerate(counted):
                first = self._scores + output * SCORES.cells_per_series
                own[first : first + SCORES.buckets] += counts


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
            own[self._queued] = tier_queued()
