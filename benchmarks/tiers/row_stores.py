"""Lookups of the rows of a table that is larger than its memory, in several ways."""

import resource
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.tiers.limited_pages import LimitedPages
from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.ids.row_places import RowPlaces
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from kernels.tiers.row_tier import RowTier, TierPart
from sharded_infer.artifacts.file_mapping import map_file
from sharded_infer.lookups.held.row_memory import pinned_and_cached
from sharded_infer.planning.memory_budget import KeptRows
from sharded_infer.progress import Progress
from sharded_infer.tensors import tensor_of

DIM: Final = 128
ROW_BYTES: Final = 132  # of int8 rows
IDS_OF_A_BAG: Final = 16

Ids = NDArray[np.int64]


class Counts(NamedTuple):
    """Ids, hits (ids that needed no read) and disk reads of a store; None if not reported."""

    ids: int
    hits: int | None
    reads: int | None


class RowStore:
    """Pools rows by their ids."""

    @property
    def is_warm(self) -> bool:
        """True if its memory roughly has its long-term contents."""
        return True

    def begin(self, ids: Ids) -> None:
        """Prepare a batch, unmeasured."""

    def look_up(self, ids: Ids) -> torch.Tensor:
        """Pool bags of `IDS_OF_A_BAG` rows; many threads call it at once."""
        raise NotImplementedError

    def end(self, ids: Ids) -> None:
        """End a batch, unmeasured."""

    def counts(self) -> Counts:
        raise NotImplementedError

    def close(self) -> None:
        """Close its files."""


class MappedRows(RowStore):
    """Rows in a mapped file, by their ids or by use; the page cache is the only cache."""

    def __init__(self, path: Path, room: int, past: Ids, places: RowPlaces | None = None) -> None:
        """Map the file.

        Args:
            room: bytes of pages that stay in memory.
            past: ids that were looked up before.
            places: of the ids' rows; None: ids are rows.
        """
        self._pages, self._places = LimitedPages(path, ROW_BYTES, room), places
        self._lookup = row_lookup(self._pages.rows.view(-1))
        self._pages.fill(self._rows(past))
        self._ids = self._hits = self._reads = self._before = 0

    def begin(self, ids: Ids) -> None:
        self._ids += len(ids)
        self._hits += len(ids) - self._pages.missing(self._rows(ids))
        self._before = _page_reads()

    def look_up(self, ids: Ids) -> torch.Tensor:
        return pooled(self._lookup, self._rows(ids))

    def end(self, ids: Ids) -> None:
        self._reads += _page_reads() - self._before
        self._pages.drop(self._rows(ids))

    def counts(self) -> Counts:
        return Counts(self._ids, self._hits, self._reads)

    def _rows(self, ids: Ids) -> Ids:
        return ids if self._places is None else self._places.rows(ids)


class TieredRows(RowStore):
    """Ordered rows in tiers, as with `serve --row-memory-mib`."""

    def __init__(self, path: Path, kept: KeptRows, places: RowPlaces, progress: Progress) -> None:
        """Read the pinned rows; `kept` are the rows that the memory holds."""
        rows = places.count
        [(pinned, cached)] = pinned_and_cached([("", 0, rows)], kept, is_ordered=True)
        self._places = places
        self._tier = RowTier(
            path, offset=0, row_bytes=ROW_BYTES, rows=rows, hot_rows=pinned, cached_rows=cached
        )
        done, total = 0, pinned * ROW_BYTES
        for count in self._tier.load():
            done += count
            progress("reading rows", done, total)
        # A lookup has the whole file as its memory, but does not read it.
        with path.open("rb") as file:
            mapping = map_file(file.fileno(), rows * ROW_BYTES, large=False)
        self._lookup = row_lookup(tensor_of(np.frombuffer(mapping, np.uint8)), self._tier)

    @property
    def is_warm(self) -> bool:
        return self._tier.counts().reads >= 2 * self._tier.cached_rows

    def look_up(self, ids: Ids) -> torch.Tensor:
        return pooled(self._lookup, self._places.rows(ids))

    def counts(self) -> Counts:
        counts = self._tier.counts()
        hits = counts.hot + counts.cached
        return Counts(hits + counts.missed, hits, counts.reads)


def row_lookup(memory: torch.Tensor, tier: RowTier | None = None) -> PooledLookup:
    """A lookup of the rows of one table, uint8 `[bytes]`; with a tier, of the rows in it."""
    rows = len(memory) // ROW_BYTES
    tiers = () if tier is None else (TierPart(tier),)
    tables = FusedTables(memory, RowFormat.INT8, (0,), (rows,), (DIM,), (False,), tiers=tiers)
    return PooledLookup(tables)


def pooled(lookup: PooledLookup, rows: Ids) -> torch.Tensor:
    """Pool bags of `IDS_OF_A_BAG` rows, fp32 `[bags, DIM]`."""
    lengths = torch.full((1, len(rows) // IDS_OF_A_BAG), IDS_OF_A_BAG)
    return lookup(Bags(torch.from_numpy(rows), lengths), ids_checked=True)


def _page_reads() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
