"""Pieces of tables on each rank of a plan, and their rows in memory.

Order and numbers of placed pieces follow from plan and manifest alone: a front knows other hosts'
pieces without their rows.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

import torch

from kernels.ids.partition import LAST_HASH
from kernels.stored_rows import select_columns
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.file_pages import leave_page_table
from sharded_infer.artifacts.manifest import Manifest, blocks_name
from sharded_infer.artifacts.mapped_tables import TablePiece
from sharded_infer.artifacts.row_blocks import IdRange, StoredRange
from sharded_infer.errors import InternalError
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

_CHUNK_BYTES = 4 * 2**20


class StoredRows(Protocol):
    """A range of a table's rows in one table file."""

    @property
    def file(self) -> str:
        """The file's name."""

    @property
    def first_row(self) -> int:
        """The range's first row."""

    @property
    def rows(self) -> int:
        """Rows of the range."""


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """The part of a shard, or of a replica, that is in one table file.

    Attributes:
        number: its position among the pieces of the host.
        first_row: relative to the table, as `first_column`.
        turn: for a replicated table, the turn in which this rank serves it; otherwise None.
    """

    table: StoredTable
    rank: int
    host: int
    number: int
    file: str
    first_row: int
    rows: int
    first_column: int
    columns: int
    turn: int | None = None

    @property
    def holds_all_rows(self) -> bool:
        """True if the piece has every row of the table, so ids are not split by row."""
        return self.rows == self.table.rows

    @property
    def holds_all_columns(self) -> bool:
        """True if the piece has whole rows, which are used where they are stored."""
        return self.columns == self.table.dim


def place(
    plan: Plan,
    tables: Mapping[str, StoredTable],
    stored: Mapping[str, Sequence[StoredRows]],
) -> list[PlacedPiece]:
    """Cuts the shards of a checked plan where files end, and numbers the pieces of each host.

    Ranks take turns to serve a replicated table. Tables start at different ranks, so the load of
    each turn is even. `stored` has each table's rows in files, in the manifest's order.
    """
    placed: list[PlacedPiece] = []
    numbers: Counter[int] = Counter()
    # Shard hosts and fronts of several releases number pieces alike: this order never changes.
    for shard, turn in plan_shards(plan, tables):
        host = plan.topology.devices[shard.rank].host
        for rows in stored[shard.table]:
            first = max(shard.first_row, rows.first_row)
            last = min(shard.last_row, rows.first_row + rows.rows)
            if first < last:
                placed.append(
                    PlacedPiece(
                        table=tables[shard.table],
                        rank=shard.rank,
                        host=host,
                        number=numbers[host],
                        file=rows.file,
                        first_row=first,
                        rows=last - first,
                        first_column=shard.first_column,
                        columns=shard.columns,
                        turn=turn,
                    )
                )
                numbers[host] += 1
    return placed


def plan_shards(
    plan: Plan, tables: Mapping[str, StoredTable]
) -> Iterator[tuple[Shard, int | None]]:
    """All shards with their turns, then each rank's replicas."""
    yield from ((shard, None) for shard in plan.shards)
    ranks = plan.ranks
    for number, name in enumerate(plan.replicated):
        table = tables[name]
        for at, rank in enumerate(ranks):
            whole = Shard(name, rank, 0, table.rows, 0, table.dim)
            yield whole, (at - number) % len(ranks)


def place_stored(plan: Plan, artifact: Artifact) -> list[PlacedPiece]:
    """`place` for the tables of a version."""
    records = {table.name: table.placed_pieces for table in artifact.manifest.tables}
    return place(plan, artifact.manifest.stored_tables(), records)


def share_of(placed: Iterable[PlacedPiece], host: int | None) -> list[PlacedPiece]:
    """Pieces of one host's ranks, none without a host; a piece's place is its number."""
    return [piece for piece in placed if piece.host == host]


def split_tables(placed: Iterable[PlacedPiece]) -> set[str]:
    """Tables whose rows are split across pieces."""
    return {piece.table.name for piece in placed if not piece.holds_all_rows}


def stored_ranges(share: Iterable[PlacedPiece]) -> list[StoredRange]:
    """The rows of pieces, where they are stored."""
    return [StoredRange(p.file, p.table.name, p.first_row, p.rows) for p in share]


def raw_hashes(piece: PlacedPiece, table: TableSpec | None) -> tuple[int, int] | None:
    """First and last hash of the raw ids of a piece's rows; None: its host cannot map them.

    `table` is the piece's, if its ids are raw.
    """
    if table is None or table.id_map is None:
        return None
    if piece.holds_all_rows:
        return 0, LAST_HASH
    partition, last = table.id_map.partition, piece.first_row + piece.rows
    if partition is None:
        return None
    return partition.hashes_of_rows(piece.first_row, last, table.rows)


def id_ranges(
    manifest: Manifest, tables: Collection[str], share: Iterable[PlacedPiece] | None = None
) -> list[IdRange]:
    """Stored ranges of tables' raw ids in id maps with hashes of blocks; `share` None: all ids."""
    files = {name: file for name, file in (manifest.id_maps or {}).items() if name in tables}
    files = {name: file for name, file in files.items() if blocks_name(file) in manifest.files}
    if share is None:
        return [IdRange(file, 0, LAST_HASH) for file in files.values()]
    mapped = {t.name: t for t in manifest.model_spec().mapped_tables if t.name in files}
    pairs = [(piece, raw_hashes(piece, mapped.get(piece.table.name))) for piece in share]
    return [IdRange(files[p.table.name], *hashes) for p, hashes in pairs if hashes is not None]


def mapped_by_hosts(
    placed: Iterable[PlacedPiece], spec: ModelSpec, front: int | None = None
) -> frozenset[str]:
    """Tables whose raw ids the hosts of their rows map; their pieces are whole parts of rows.

    `front` is the host whose rows the front has: of tables with rows there it maps all ids.
    """
    mapped = {table.name: table for table in spec.mapped_tables}
    kept = {
        piece.table.name
        for piece in placed
        if piece.host == front or raw_hashes(piece, mapped.get(piece.table.name)) is None
    }
    return frozenset(mapped) - kept


def share_digest(share: Sequence[PlacedPiece], mapped: Collection[str] = ()) -> str:
    """SHA-256 of a share: equal where two processes mean the same by the same numbers.

    `mapped` are tables of which the host maps raw ids, as `mapped_by_hosts`.
    """
    pieces = [astuple(piece) for piece in share]
    own = sorted({piece.table.name for piece in share} & set(mapped))
    # Shares without id maps keep the form of earlier releases, which know no raw ids.
    text = json.dumps([pieces, own] if own else pieces, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def hold(
    placed: Iterable[PlacedPiece], pieces: Mapping[str, Sequence[TablePiece]]
) -> dict[PlacedPiece, TablePiece]:
    """Rows of placed pieces in memory, from all of each table's.

    Whole rows are used in place. A column shard is copied, because each row needs its own scale and
    bias.
    """
    return {piece: _rows_of(piece, pieces[piece.table.name]) for piece in placed}


def _rows_of(placed: PlacedPiece, pieces: Sequence[TablePiece]) -> TablePiece:
    table, last = placed.table, placed.first_row + placed.rows
    for piece in pieces:
        if piece.first_row <= placed.first_row and last <= piece.first_row + piece.rows:
            break
    else:
        raise InternalError(
            f"table {table.name!r}: rows [{placed.first_row}, {last}) lie in no piece"
        )
    if placed.holds_all_columns:
        return piece.part(placed.first_row, placed.rows, table.row_bytes)
    last_column = placed.first_column + placed.columns
    columns = torch.empty(
        placed.rows, table.row_format.row_bytes(placed.columns), dtype=torch.uint8
    )
    step = max(1, _CHUNK_BYTES // table.row_bytes)
    for first in range(0, placed.rows, step):
        end = min(first + step, placed.rows)
        part = piece.read(placed.first_row + first, placed.first_row + end, table.row_bytes)
        columns[first:end] = select_columns(
            table.row_format, part, placed.first_column, last_column
        )
        if piece.file is not None:
            # Bytes read to cut the columns out do not belong to the share.
            own = piece.own(placed.first_row + first, placed.first_row + end, table.row_bytes)
            leave_page_table(own)
    return TablePiece(columns.view(-1), 0, placed.first_row, placed.rows, None)
