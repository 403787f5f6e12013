"""Steps of a lookup from its entries: one a rank, memory and row format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.backends.native import kernel_for_compiled_code
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.lookups.columns import column_runs
from sharded_infer.lookups.placement import PlacedPiece
from sharded_infer.lookups.rank_part import RankPart
from sharded_infer.lookups.shard_hosts import StoredPieces


@dataclass(frozen=True, slots=True)
class Step:
    """A fused lookup of a rank in this process.

    `order` is its place among all ranks' steps, in which row parts are added.
    """

    part: RankPart
    lookup: PooledLookup
    order: int

    @property
    def is_plain(self) -> bool:
        """True if its bags and output are the group's, and the rows are in memory."""
        part, tables = self.part, self.lookup.tables
        writes_all = part.only_run == (0, tables.total_dim)
        one_size = isinstance(part.row_bytes, int)
        return part.reads_everything and writes_all and one_size and not tables.tiers


@dataclass(frozen=True, slots=True)
class RemoteStep:
    """A lookup of a rank of another host.

    Attributes:
        pieces: int64 `[entries]`, numbers of pieces on the host.
        width: columns of all pieces.
        order: as in `Step`.
        stored: layout to pool their rows here.
        sum_bytes, raw: as in `PieceBags`.
        counted: of raw ids, entries that report each unknown one once: the tables' first columns.
            Several steps may report one bag, each for its own part of the rows.
    """

    part: RankPart
    host: int
    pieces: NDArray[np.int64]
    width: int
    order: int
    stored: StoredPieces
    sum_bytes: int
    raw: bool
    counted: tuple[int, ...]


class Entry(NamedTuple):
    """One piece's part of a lookup.

    Attributes:
        bags: its row of the group's bags.
        column: its first column in the output.
        mean: True if the rank divides its bags' sums.
        hashes: of the raw ids that it looks up, first and last; None: of all, or ids are rows.
    """

    bags: int
    placed: PlacedPiece
    column: int
    mean: bool
    hashes: tuple[int, int] | None = None


def make_step(
    entries: Sequence[Entry],
    held: Mapping[PlacedPiece, TablePiece],
    *,
    order: int,
    rows: int,
    split: bool,
    backend: str | None = None,
) -> Step:
    """A step of pieces in one memory; InputError if no backend, or not the forced one, fits.

    Args:
        rows: number of rows of the group's bags.
        split: ids are relative to the table and pieces hold a part of it, whose sums are added.
    """
    pieces = [held[entry.placed] for entry in entries]
    tables = FusedTables(
        memory=pieces[0].memory,
        row_format=entries[0].placed.table.row_format,
        byte_offsets=tuple(piece.byte_offset for piece in pieces),
        rows=tuple(piece.rows for piece in pieces),
        dims=tuple(entry.placed.columns for entry in entries),
        means=tuple(entry.mean for entry in entries),
        file=pieces[0].file,
        overlays=tuple(piece.overlay for piece in pieces),
        tiers=tuple(piece.tier for piece in pieces if piece.tier is not None),
    )
    lookup = PooledLookup(tables, backend=backend)
    return Step(_rank_part(entries, rows=rows, split=split), lookup, order)


def make_remote_step(
    entries: Sequence[Entry],
    *,
    order: int,
    rows: int,
    split: bool,
    sums: Literal["fp32", "bf16"],
    raw: bool = False,
) -> RemoteStep:
    """A step of pieces of one rank of another host; see `make_step`.

    Args:
        sums: transfer dtype of sums; those of a part of a table's rows are always fp32.
        raw: ids are raw; of pieces with a part of the rows, by their hashes.
    """
    width = sum(entry.placed.columns for entry in entries)
    return RemoteStep(
        _rank_part(entries, rows=rows, split=split),
        host=entries[0].placed.host,
        pieces=np.array([entry.placed.number for entry in entries]),
        width=width,
        order=order,
        stored=_stored(entries, width),
        sum_bytes=2 if sums == "bf16" and not split else 4,
        raw=raw,
        counted=tuple(
            at for at, entry in enumerate(entries) if raw and entry.placed.first_column == 0
        ),
    )


def _stored(entries: Sequence[Entry], columns: int) -> StoredPieces:
    formats, described = kernel_for_compiled_code().formats, []
    for entry in entries:
        row_format, width = entry.placed.table.row_format, entry.placed.columns
        row_bytes = row_format.row_bytes(width)
        described.append((width, row_bytes, formats[row_format], entry.mean))
    return StoredPieces(np.array(described, np.int64), columns)


def _rank_part(entries: Sequence[Entry], *, rows: int, split: bool) -> RankPart:
    positions = [entry.bags for entry in entries]
    ranges = [entry.hashes for entry in entries if entry.hashes is not None]
    kept_rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    kept_hashes: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
    # All entries' ids are rows, or all are raw.
    if split and ranges:
        firsts, lasts = np.array(ranges, np.uint64).T.copy()
        kept_hashes = firsts, lasts
    elif split:
        first_rows = np.array([entry.placed.first_row for entry in entries])
        counts = np.array([entry.placed.rows for entry in entries])
        kept_rows = first_rows, first_rows + counts
    runs = column_runs((entry.column, entry.placed.columns, split) for entry in entries)
    return RankPart(
        positions=np.array(positions),
        reads_everything=not split and positions == list(range(rows)),
        kept_rows=kept_rows,
        kept_hashes=kept_hashes,
        runs=np.array(runs, np.int64),
        only_run=(runs[0].column, runs[0].width) if len(runs) == 1 and not split else None,
        rank=entries[0].placed.rank,
        row_bytes=_row_bytes_of(entries),
    )


def _row_bytes_of(entries: Sequence[Entry]) -> int | NDArray[np.int64]:
    """Bytes of a stored row: one number if all entries agree, otherwise int64 `[entries]`."""
    placed = [entry.placed for entry in entries]
    sizes = [piece.table.row_format.row_bytes(piece.columns) for piece in placed]
    return sizes[0] if len(set(sizes)) == 1 else np.array(sizes, np.int64)
