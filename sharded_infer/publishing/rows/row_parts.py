"""Parts of a table's rows, each for the ids whose hashes lie in one range.

Each part has rows that unknown ids share first, then rows with ids of their own, then others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kernels.ids.partition import partition_hashes, parts_of
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource
from sharded_infer.publishing.rows.row_order import Rows
from sharded_infer.specs.id_map_spec import IdPartition, SharedRows
from sharded_infer.specs.model_spec import TableSpec

# First rows of a table's parts, and its end.
Cuts = tuple[int, ...]


def shared_rows(table: TableSpec) -> list[int]:
    """Rows that unknown ids read, ascending."""
    unknown = None if table.id_map is None else table.id_map.unknown
    return sorted(set(unknown.rows)) if isinstance(unknown, SharedRows) else []


@dataclass(frozen=True, slots=True)
class RowOwners:
    """Rows' own ids: at most one each, except for rows shared by unknown ids.

    `owned` is bool `[rows]`; `hashes` of the ids, uint64 `[rows]`, is valid where owned.
    """

    owned: NDArray[np.bool_]
    hashes: NDArray[np.uint64]

    @property
    def count(self) -> int:
        """Rows with an id of their own."""
        return int(np.count_nonzero(self.owned))


def row_owners(table: TableSpec, source: IdMapSource) -> RowOwners | None:
    """The owners; None if a row has several ids, which may belong to several parts."""
    owned, hashes = np.zeros(table.rows, np.bool_), np.zeros(table.rows, np.uint64)
    is_shared = np.zeros(table.rows, np.bool_)
    is_shared[shared_rows(table)] = True
    for ids, rows in source.chunks(table.rows):
        own = ~is_shared[rows]
        rows = rows[own]
        if owned[rows].any() or len(np.unique(rows)) < len(rows):
            return None
        owned[rows], hashes[rows] = True, partition_hashes(ids[own])
    return RowOwners(owned, hashes)


def _rooms(table: TableSpec, cuts: Cuts) -> list[int]:
    shared = len(shared_rows(table))
    return [end - first - shared for first, end in pairwise(cuts)]


def _counts(rooms: list[int], count: int) -> list[int]:
    ends, total, before = [0], sum(rooms), 0
    for room in rooms:
        before += room
        ends.append(count * before // total)
    return [end - first for first, end in pairwise(ends)]


def fit(table: TableSpec, owners: RowOwners | None, cuts: Cuts) -> bool:
    """True if each part has room for the shared rows, and gets an id of its own."""
    if owners is None:
        return False
    rooms = _rooms(table, cuts)
    # Part numbers are sorted as uint16.
    is_possible = len(rooms) <= 2**16 and min(rooms) > 0
    return is_possible and min(_counts(rooms, owners.count)) > 0


@dataclass(frozen=True, slots=True)
class RowParts:
    """A partitioned table.

    Attributes:
        order: uint32 `[rows]`, the former row in each place.
        places: uint32 `[former rows]`, the places of rows with own ids, and of shared rows' first
            copies.
        shared: former rows that unknown ids share, ascending; the first of each part.
    """

    partition: IdPartition
    order: Rows
    places: Rows
    shared: tuple[int, ...]

    def ordered(self, table: TableSpec) -> TableSpec:
        """The table as published."""
        if table.id_map is None:
            return table
        unknown = table.id_map.unknown
        if isinstance(unknown, SharedRows):
            rows = tuple(self.shared.index(row) for row in unknown.rows)
            unknown = replace(unknown, rows=rows)
        id_map = replace(table.id_map, unknown=unknown, partition=self.partition)
        return replace(table, id_map=id_map)


def parts_of_rows(table: TableSpec, owners: RowOwners, cuts: Cuts) -> RowParts:
    """Partition the rows of a table that `fit`s."""
    shared = shared_rows(table)
    counts = _counts(_rooms(table, cuts), owners.count)
    rows = np.flatnonzero(owners.owned)
    hashes = owners.hashes[rows]
    ends = np.cumsum(counts)[:-1]
    firsts = np.partition(hashes, ends)[ends] if len(ends) else hashes[:0]
    partition = IdPartition(cuts[:-1], (0, *firsts.tolist()))
    of_rows = np.searchsorted(firsts, hashes, "right").astype(np.uint16)
    rows = rows[np.argsort(of_rows, kind="stable")]
    free = owners.owned.copy()
    free[shared] = True
    unused = np.flatnonzero(~free)
    # The rest of a part is never read.
    order = np.full(cuts[-1], shared[0] if shared else 0, np.uint32)
    places = np.zeros(table.rows, np.uint32)
    start = taken = 0
    for (first, end), count in zip(pairwise(cuts), counts, strict=True):
        order[first : first + len(shared)] = shared
        first += len(shared)
        own = rows[start : start + count]
        order[first : first + count] = own
        places[own] = np.arange(first, first + count)
        left = unused[taken : taken + end - first - count]
        order[first + count : first + count + len(left)] = left
        start, taken = start + count, taken + len(left)
    places[shared] = np.arange(len(shared))
    return RowParts(partition, order, places, tuple(shared))


@dataclass(frozen=True, slots=True)
class MovedIds:
    """The ids of a source, and their rows' new places."""

    source: IdMapSource
    parts: RowParts

    def __call__(self) -> Iterator[Chunk]:
        """As `IdMapSource.read`."""
        parts, partition = self.parts, self.parts.partition
        is_shared = np.zeros(len(parts.places), np.bool_)
        is_shared[list(parts.shared)] = True
        firsts = np.array(partition.first_rows, np.int64)
        for ids, rows in self.source.chunks(len(parts.places)):
            places, shared = parts.places[rows].astype(np.int64), is_shared[rows]
            # Each id reads its own part's copy of such a row.
            places[shared] += firsts[parts_of(ids[shared], partition.first_hashes)]
            yield ids, places
