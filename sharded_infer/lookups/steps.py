"""Steps of a lookup from its entries: one a rank, memory and row format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.abi.lookup_run import LookupColumns, LookupEntry, LookupIds, LookupPart
from kernels.backends.native import kernel_for_compiled_code
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.lookups.columns import column_runs
from sharded_infer.lookups.placement import PlacedPiece
from sharded_infer.lookups.shard_hosts import StoredPieces
from sharded_infer.lookups.structures import Structures


class Entry(NamedTuple):
    """One piece's part of a lookup.

    Attributes:
        feature: its position in the group.
        column: its first column in the output.
        mean: True if the rank divides its bags' sums.
        hashes: of the raw ids that it looks up, first and last; None: of all, or ids are rows.
    """

    feature: int
    placed: PlacedPiece
    column: int
    mean: bool
    hashes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What a rank reads of a group's ids, and where its columns go.

    Attributes:
        order: its place among all parts, in which those of rows are added.
        features: of each entry, its position in the group.
        columns: first of each entry in the output.
        is_split: ids are relative to the table and pieces hold a part of its rows, whose sums are
            added.
        is_adjacent: it reads all ids of adjacent features, which need not be copied.
        fields: for compiled code.
        structures: that `fields` has addresses of.
    """

    order: int
    rank: int
    features: tuple[int, ...]
    columns: tuple[int, ...]
    width: int
    is_split: bool
    is_adjacent: bool
    fields: LookupPart
    structures: Structures


@dataclass(frozen=True, slots=True)
class Step:
    """A fused lookup of a rank in this process."""

    part: Part
    lookup: PooledLookup


@dataclass(frozen=True, slots=True)
class RemoteStep:
    """A lookup of a rank of another host.

    Attributes:
        pieces: int64 `[entries]`, numbers of pieces on the host.
        stored: layout to pool their rows here.
        sum_bytes, raw: as in `PieceBags`.
        counted: of raw ids, entries that report each unknown one once: the tables' first columns.
            Several steps may report one bag, each for its own part of the rows.
    """

    part: Part
    host: int
    pieces: NDArray[np.int64]
    stored: StoredPieces
    sum_bytes: int
    raw: bool
    counted: tuple[int, ...]


def make_step(
    entries: Sequence[Entry],
    held: Mapping[PlacedPiece, TablePiece],
    *,
    order: int,
    split: bool,
    backend: str | None = None,
) -> Step:
    """A step of pieces in one memory; InputError if no backend, or not the forced one, fits.

    `split` is `Part.is_split`.
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
    return Step(_part(entries, order, split=split), PooledLookup(tables, backend=backend))


def make_remote_step(
    entries: Sequence[Entry],
    *,
    order: int,
    split: bool,
    sums: Literal["fp32", "bf16"],
    raw: bool = False,
) -> RemoteStep:
    """A step of pieces of one rank of another host; see `make_step`.

    Args:
        sums: transfer dtype of sums; those of a part of a table's rows are always fp32.
        raw: ids are raw; of pieces with a part of the rows, by their hashes.
    """
    part = _part(entries, order, split=split)
    return RemoteStep(
        part,
        host=entries[0].placed.host,
        pieces=np.array([entry.placed.number for entry in entries]),
        stored=_stored(entries, part.width),
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
        described.append((width, _row_bytes(entry), formats[row_format], entry.mean))
    return StoredPieces(np.array(described, np.int64), columns)


def _row_bytes(entry: Entry) -> int:
    return entry.placed.table.row_format.row_bytes(entry.placed.columns)


def _part(entries: Sequence[Entry], order: int, *, split: bool) -> Part:
    features = tuple(entry.feature for entry in entries)
    first, count = features[0], len(entries)
    is_adjacent = not split and features == tuple(range(first, first + count))
    ids = LookupIds.ALL_IDS
    if split:
        # All entries' ids are rows, or all are raw.
        ids = LookupIds.IDS_OF_ROWS if entries[0].hashes is None else LookupIds.IDS_OF_HASHES
    runs = column_runs((entry.column, entry.placed.columns, split) for entry in entries)
    width, rank = sum(entry.placed.columns for entry in entries), entries[0].placed.rank
    structures = Structures()
    fields = LookupPart(
        *structures.listed(LookupEntry, ((e.feature, _row_bytes(e), *_range(e)) for e in entries)),
        *structures.listed(LookupColumns, runs),
        *(width, rank, ids, is_adjacent),
    )
    columns = tuple(entry.column for entry in entries)
    return Part(order, rank, features, columns, width, split, is_adjacent, fields, structures)


def _range(entry: Entry) -> tuple[int, int]:
    """First and last row, or hash of raw ids."""
    placed = entry.placed
    return entry.hashes or (placed.first_row, placed.first_row + placed.rows - 1)
