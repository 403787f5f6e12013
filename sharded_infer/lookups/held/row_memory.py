"""Rows of a process in tiers: as many in memory as a bound allows, the others in their files.

    divide the memory over the tables, so that as few ids as possible miss it
    of a table whose rows are ordered by use: pin its first rows, and cache others
    of other tables: cache rows

A cached row takes `SLOT_BYTES` beside its own. Versions with the same files, by links or as a delta
and its base, share tiers of the same rows: a release keeps the cache.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from kernels.abi.tiers import SLOT_BYTES
from kernels.tiers.row_tier import RowTier, TierPart
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import CapacityError, InputError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.lookups.placement import PlacedPiece
from sharded_infer.planning.memory_budget import KeptRows, divide_memory
from sharded_infer.planning.table_use import TableUse, table_uses
from sharded_infer.progress import Progress, no_progress, summed_progress
from sharded_infer.specs.model_spec import ModelSpec

# Share of the memory of a table in the order of use. The rest follows use that changes.
_PINNED = 15 / 16

# Tiers with loaded pinned rows, by content: file, first byte, rows, their bytes, pinned and cached
# rows. While one is in use its file is open, so no other has its number.
_LOADED: WeakValueDictionary[tuple[int, ...], RowTier] = WeakValueDictionary()

# Location of rows: file, first byte, rows. Replicas share one.
Place = tuple[str, int, int]


class RowMemory:
    """Tiers of pieces of tables.

    Attributes:
        pieces: with their tiers.
        tiers: by table, in the order of its rows.
        planned: division of the memory.
    """

    def __init__(
        self,
        artifact: Artifact,
        held: Mapping[PlacedPiece, TablePiece],
        memory_bytes: int,
    ) -> None:
        """Opens the tiers and reads nothing; `load` does.

        Args:
            held: whole rows in mapped files.
            memory_bytes: of rows and their cache entries, without changed rows, id maps and places
                of ordered rows.

        Raises:
            CapacityError: there is too little memory.
            InputError: a piece has only some of the columns; names the table.
        """
        spec = artifact.manifest.model_spec()
        places = _places(held)
        self.planned = divide_memory(_uses(spec, places), memory_bytes)
        ordered = _ordered(spec)
        self.tiers: dict[str, list[RowTier]] = {}
        self._unread: dict[tuple[int, ...], RowTier] = {}
        opened: dict[Place, RowTier] = {}
        for kept in self.planned:
            of_table = places[kept.table]
            for place, (hot, cached) in zip(
                of_table,
                pinned_and_cached(of_table, kept, is_ordered=kept.table in ordered),
                strict=True,
            ):
                opened[place] = self._opened(artifact, kept, place, hot, cached)
            self.tiers[kept.table] = [opened[place] for place in of_table]
        self.pieces = {
            # Access to a mapped file would wait for a disk that has stalled.
            placed: replace(rows, file=None, tier=TierPart(opened[_place_of(placed, rows)]))
            for placed, rows in held.items()
        }

    @property
    def memory_bytes(self) -> int:
        """Memory that the tiers take when their caches are full."""
        return sum(tier.memory_bytes for tiers in self.tiers.values() for tier in tiers)

    def load(self, progress: Progress = no_progress) -> None:
        """Reads the pinned rows that no other version has read, in the order of their files.

        `progress` is called with the bytes. Raises RowReadError if a file cannot be read.
        """
        tiers = self._unread
        total = sum(tier.hot_rows * tier.row_bytes for tier in tiers.values())
        read = summed_progress(progress, "reading rows", total)
        for tier in tiers.values():
            for count in tier.load():
                read(count)
        _LOADED.update(tiers)
        self._unread = {}

    def _opened(
        self, artifact: Artifact, kept: KeptRows, place: Place, hot: int, cached: int
    ) -> RowTier:
        file, offset, rows = place
        path = artifact.path / file
        row_bytes = artifact.manifest.stored_tables()[kept.table].row_bytes
        try:
            with open_regular(path) as opened:
                status = os.fstat(opened.fileno())
            key = (status.st_dev, status.st_ino, offset, rows, row_bytes, hot, cached)
            tier = _LOADED.get(key)
            if tier is None:
                tier = self._unread[key] = RowTier(
                    path,
                    offset=offset,
                    row_bytes=row_bytes,
                    rows=rows,
                    hot_rows=hot,
                    cached_rows=cached,
                    name=kept.table,
                )
        except MemoryError as error:
            raise CapacityError(
                f"table {kept.table!r}: no memory for {size_text(kept.bytes)} of its rows"
            ) from error
        return tier


def _places(held: Mapping[PlacedPiece, TablePiece]) -> dict[str, list[Place]]:
    places: dict[str, set[Place]] = defaultdict(set)
    for placed, rows in held.items():
        if not placed.holds_all_columns:
            raise InputError(
                f"table {placed.table.name!r}: its rows are cut by columns, expected whole rows "
                "where memory for rows is bounded: publish with a plan without columns"
            )
        places[placed.table.name].add(_place_of(placed, rows))
    return {name: sorted(of_table) for name, of_table in places.items()}


def _place_of(placed: PlacedPiece, rows: TablePiece) -> Place:
    return placed.file, rows.byte_offset, rows.own_rows


def _uses(spec: ModelSpec, places: Mapping[str, Sequence[Place]]) -> list[TableUse]:
    return [
        replace(use, table=replace(use.table, rows=sum(rows for *_, rows in places[name])))
        for use in table_uses(spec)
        if (name := use.table.name) in places
    ]


def _ordered(spec: ModelSpec) -> set[str]:
    """Tables whose first rows are used most, according to the version."""
    by_statistics = {
        feature.table.name
        for feature in spec.table_features
        if feature.name in spec.statistics and _falls(spec.statistics[feature.name].histogram)
    }
    return by_statistics | {table.name for table in spec.ordered_tables}


def _falls(histogram: Sequence[float]) -> bool:
    return bool(histogram) and list(histogram) == sorted(histogram, reverse=True)


def pinned_and_cached(
    places: Sequence[Place], kept: KeptRows, *, is_ordered: bool
) -> list[tuple[int, int]]:
    """Pinned and cached rows of each place of a table; `is_ordered`: the first are used most."""
    total = sum(rows for *_, rows in places)
    if not total:
        return [(0, 0) for _ in places]
    pinned = kept.rows if kept.rows == total else int(kept.rows * _PINNED) if is_ordered else 0
    row_bytes = kept.bytes // kept.rows if kept.rows else 1
    cached = (kept.rows - pinned) * row_bytes // (row_bytes + SLOT_BYTES)
    counts, left = [], pinned
    for *_, rows in places:
        hot = min(rows, left)
        left -= hot
        others = (rows - hot) * cached // max(1, total - pinned)
        counts.append((hot, others))
    return counts
