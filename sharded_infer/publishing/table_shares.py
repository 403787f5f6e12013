"""The share of the tables' rows that one of several publishers writes.

The concatenated table files are cut at the ends of chunks, in parts of equal fp32 size. A part is
thus a range of each of some adjacent files, and a file is its concatenated ranges. Chunks are those
of a whole publish, so that errors add up to the same bits.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from quant.stream import chunk_rows
from sharded_infer.artifacts.manifest import PieceRecord
from sharded_infer.artifacts.table_header import TableEntry, table_file_head
from sharded_infer.planning.plan import StoredTable


@dataclass(frozen=True, slots=True)
class TableRange:
    """Rows `[first_row, last_row)` of a table."""

    table: StoredTable
    first_row: int
    last_row: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.last_row - self.first_row

    @property
    def fp32_bytes(self) -> int:
        """Bytes of the rows before encoding."""
        return 4 * self.rows * self.table.dim


@dataclass(frozen=True, slots=True)
class FileShare:
    """A part's nonempty range of one table file.

    `head` is the file's bytes before its first row; empty if another part has them.
    """

    file: str
    head: bytes
    ranges: tuple[TableRange, ...]
    is_whole: bool

    @property
    def stored_bytes(self) -> int:
        """Bytes of its rows."""
        return sum(r.rows * r.table.row_bytes for r in self.ranges)

    @property
    def bytes(self) -> int:
        """Bytes of the range, including its head."""
        return len(self.head) + self.stored_bytes


def share_of(
    tables: Sequence[StoredTable],
    pieces: dict[str, list[PieceRecord]],
    part: int = 1,
    parts: int = 1,
) -> list[FileShare]:
    """The ranges of one part (from 1 to `parts`), at most one per file, in file order.

    `pieces` are those of `lay_out`. Empty if there are fewer chunks than parts.
    """
    total = sum(4 * table.rows * table.dim for table in tables)
    position, shares = 0, []
    for file, members in _members(tables, pieces).items():
        ranges = []
        for table, record in members:
            # In bytes times parts, to compare integers.
            begin, end = ((n * total - position * parts) for n in (part - 1, part))
            first, last = (_chunks_before(bound, parts, record, table) for bound in (begin, end))
            if first < last:
                ranges.append(TableRange(table, record.first_row + first, record.first_row + last))
            position += 4 * record.rows * table.dim
        if ranges:
            shares.append(_file_share(file, members, ranges))
    return shares


_Members = list[tuple[StoredTable, PieceRecord]]


def _members(
    tables: Sequence[StoredTable], pieces: dict[str, list[PieceRecord]]
) -> dict[str, _Members]:
    by_name = {table.name: table for table in tables}
    by_file: dict[str, _Members] = defaultdict(list)
    for name, records in pieces.items():
        for record in records:
            by_file[record.file].append((by_name[name], record))
    return by_file


def _chunks_before(bound: int, parts: int, record: PieceRecord, table: StoredTable) -> int:
    """Rows of the piece's chunks that begin before a bound, counted in `1 / parts` bytes."""
    rows = chunk_rows(table.dim)
    chunks = max(0, -(-bound // (4 * rows * table.dim * parts)))
    return min(record.rows, rows * chunks)


def _file_share(file: str, members: _Members, ranges: Sequence[TableRange]) -> FileShare:
    table, record = members[0]
    has_first = (ranges[0].table, ranges[0].first_row) == (table, record.first_row)
    entries = [TableEntry(r.entry, r.rows, t.row_bytes) for t, r in members]
    is_whole = sum(r.rows for r in ranges) == sum(r.rows for _, r in members)
    return FileShare(file, table_file_head(entries) if has_first else b"", tuple(ranges), is_whole)
