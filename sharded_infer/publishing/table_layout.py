"""Assignment of tables' rows to table files."""

from collections.abc import Sequence

from sharded_infer.artifacts.manifest import PieceRecord
from sharded_infer.planning.plan import StoredTable

MAX_FILE_BYTES = 8 * 2**30  # small enough to upload and cache by the piece, large enough to be few


def lay_out(
    tables: Sequence[StoredTable], max_file_bytes: int = MAX_FILE_BYTES
) -> dict[str, list[PieceRecord]]:
    """Fill files of one row format in turn; a table that exceeds a file continues in the next.

    Within a format, tables of one dim are adjacent, so that kernels can use them as one matrix.
    Returns each table's pieces in row order, in files `tables/<row format>-<nnnnn>.safetensors`. A
    file is full at `max_file_bytes` bytes of rows.
    """
    pieces: dict[str, list[PieceRecord]] = {}
    row_format, number, room = "", 0, 0
    for table in sorted(tables, key=lambda t: (t.row_format, t.dim)):
        if table.row_format != row_format:
            row_format, number, room = table.row_format, 0, max_file_bytes
        pieces[table.name] = []
        first = 0
        while first < table.rows:
            whole = room >= table.stored_bytes
            # A table that fits a file is not split merely because this file is nearly full.
            rows = 0 if not whole and table.stored_bytes <= max_file_bytes else room
            rows = min(table.rows - first, rows // table.row_bytes)
            if rows == 0 and room == max_file_bytes:
                rows = 1  # a row larger than a whole file
            if rows == 0:
                number, room = number + 1, max_file_bytes
                continue
            entry = table.name if rows == table.rows else f"{table.name}#{len(pieces[table.name])}"
            file = f"tables/{row_format}-{number:05d}.safetensors"
            pieces[table.name].append(PieceRecord(file, entry, first, rows))
            first += rows
            room = max(0, room - rows * table.row_bytes)
    return pieces
