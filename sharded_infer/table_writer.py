"""Quantizes a model's tables into table files, chunk by chunk."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quant.report import ErrorMeter, TableReport
from quant.source import WeightSource
from quant.stream import quantize_rows
from sharded_infer.errors import InputError, WeightsError
from sharded_infer.manifest import FileRecord, PieceRecord
from sharded_infer.plan import StoredTable
from sharded_infer.progress import Progress
from sharded_infer.table_file import TableEntry, write_table_file
from sharded_infer.table_layout import lay_out


@dataclass(frozen=True, slots=True)
class WrittenTables:
    """The table files, and what quantization did.

    Attributes:
        pieces: where each table's rows are.
        files: size and hash of each table file.
        reports: of each table, in the order given.
    """

    pieces: dict[str, list[PieceRecord]]
    files: dict[str, FileRecord]
    reports: list[TableReport]


def write_tables(
    folder: Path,
    tables: Sequence[StoredTable],
    source: WeightSource,
    keys: Mapping[str, str],
    *,
    clip: bool,
    progress: Progress,
) -> WrittenTables:
    """Writes `tables/` of a version.

    Args:
        folder: the version's folder.
        tables: the tables, as they are to be stored.
        source: the trained weights.
        keys: each table's key in the source.
        clip: search the range of int4 and int2 rows.
        progress: told the fp32 bytes done.

    Raises:
        WeightsError: a row cannot be stored; names the table and the row.
    """
    by_name = {table.name: table for table in tables}
    meters = {t.name: ErrorMeter(t.name, t.row_format, t.dim) for t in tables}
    total = sum(4 * table.rows * table.dim for table in tables)
    done = 0

    def count(read: int) -> None:
        nonlocal done
        done += read
        progress("quantizing", done, total)

    def rows_of(members: Sequence[tuple[StoredTable, PieceRecord]]) -> Iterator[Tensor]:
        for table, record in members:
            yield from quantize_rows(
                source,
                keys[table.name],
                table.row_format,
                meters[table.name],
                table=table.name,
                first_row=record.first_row,
                last_row=record.first_row + record.rows,
                on_bytes=count,
                clip=clip,
            )

    pieces = lay_out(tables)
    by_file: dict[str, list[tuple[StoredTable, PieceRecord]]] = defaultdict(list)
    for name, records in pieces.items():
        for record in records:
            by_file[record.file].append((by_name[name], record))
    (folder / "tables").mkdir()
    files = {}
    for file, members in by_file.items():
        entries = [TableEntry(r.entry, r.rows, table.row_bytes) for table, r in members]
        try:
            files[file] = write_table_file(folder / file, entries, rows_of(members))
        except InputError as error:
            raise WeightsError(str(error)) from error
    return WrittenTables(pieces, files, [meters[table.name].report() for table in tables])
