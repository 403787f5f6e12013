"""Where the rows of a table lie in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from kernels.mapped_file import MappedFile
from kernels.stored_rows import select_columns
from sharded_infer.plan import Plan, Shard, StoredTable


@dataclass(frozen=True, slots=True)
class TablePiece:
    """A range of a table's rows in one memory.

    Attributes:
        memory: uint8 `[bytes]`; pieces of one file share it.
        byte_offset: where the range's first row begins in `memory`.
        first_row: the range's first row, in the table.
        rows: rows of the range.
        file: what `memory` maps; None: it is a copy.
    """

    memory: Tensor
    byte_offset: int
    first_row: int
    rows: int
    file: MappedFile | None = None


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """A part of a shard that lies in one memory.

    Attributes:
        table: the table.
        rank: the rank that holds it.
        piece: its rows, reduced to its columns.
        first_column: its first column, in the table.
        columns: number of columns.
        turn: of a replicated table, the turn on which this rank serves it; None: it always does.
    """

    table: StoredTable
    rank: int
    piece: TablePiece
    first_column: int
    columns: int
    turn: int | None = None

    @property
    def holds_all_rows(self) -> bool:
        """Whether every row of the table is here, so that bags need no routing by row."""
        return self.piece.rows == self.table.rows


def place(
    plan: Plan,
    tables: Mapping[str, StoredTable],
    pieces: Mapping[str, Sequence[TablePiece]],
) -> list[PlacedPiece]:
    """Cuts the stored pieces along the plan's shards.

    Whole rows are used where they lie. A column shard is copied, because a fused row must carry its
    own scale and bias. Each replicated table has every rank in use once in as many turns as there
    are, and tables begin at different ranks, so that every turn is spread evenly.

    Args:
        plan: a checked plan.
        tables: the tables, by name.
        pieces: the stored pieces of each table.
    """
    ranks = plan.ranks
    own = [
        placed
        for shard in plan.shards
        for piece in pieces[shard.table]
        if (placed := _intersect(shard, piece, tables[shard.table])) is not None
    ]
    replicas = [
        PlacedPiece(
            tables[name], rank, piece, 0, tables[name].dim, turn=(place - number) % len(ranks)
        )
        for number, name in enumerate(plan.replicated)
        for place, rank in enumerate(ranks)
        for piece in pieces[name]
    ]
    return own + replicas


def _intersect(shard: Shard, piece: TablePiece, table: StoredTable) -> PlacedPiece | None:
    first = max(shard.first_row, piece.first_row)
    last = min(shard.last_row, piece.first_row + piece.rows)
    if first >= last:
        return None
    memory, file = piece.memory, piece.file
    start = piece.byte_offset + (first - piece.first_row) * table.row_bytes
    if shard.columns != table.dim:
        stored = memory[start : start + (last - first) * table.row_bytes]
        stored = stored.view(-1, table.row_bytes)
        columns = select_columns(table.row_format, stored, shard.first_column, shard.last_column)
        memory, start, file = columns.view(-1), 0, None
    return PlacedPiece(
        table=table,
        rank=shard.rank,
        piece=TablePiece(memory, start, first, last - first, file),
        first_column=shard.first_column,
        columns=shard.columns,
    )
