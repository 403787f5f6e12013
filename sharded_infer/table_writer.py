"""Quantizes a model's tables into table files, chunk by chunk."""

import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quant.error_meter import ErrorMeter
from quant.report import TableReport
from quant.stream import RowRange, encode_ranges
from sharded_infer.errors import InputError, StorageError, WeightsError
from sharded_infer.format_plan import FormatPlan
from sharded_infer.manifest import FileRecord, PieceRecord
from sharded_infer.plan import StoredTable
from sharded_infer.progress import Progress
from sharded_infer.sizes import size_text
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


def write_tables(folder: Path, plan: FormatPlan, progress: Progress) -> WrittenTables:
    """Writes `tables/` of a version.

    Args:
        folder: the version's folder.
        plan: the tables, their weights and how they are to be stored.
        progress: told the fp32 bytes done.

    Raises:
        WeightsError: a row cannot be stored; names the table and the row.
        StorageError: the tables do not fit the disk, or writing failed; says what was needed.
    """
    meters = {
        t.name: ErrorMeter(t.name, t.row_format, t.dim, plan.reasons[t.name]) for t in plan.tables
    }
    total = sum(4 * table.rows * table.dim for table in plan.tables)
    done = 0
    by_name = {table.name: table for table in plan.tables}
    pieces = lay_out(plan.tables)
    by_file: dict[str, list[tuple[StoredTable, PieceRecord]]] = defaultdict(list)
    for name, records in pieces.items():
        for record in records:
            by_file[record.file].append((by_name[name], record))
    needed = sum(table.stored_bytes for table in plan.tables)
    _check_room(folder, needed)

    def rows_of(members: Sequence[tuple[StoredTable, PieceRecord]]) -> Iterator[Tensor]:
        nonlocal done
        for chunk in encode_ranges(_ranges(plan, members)):
            meters[chunk.table].add(chunk.errors)
            yield chunk.stored
            done += chunk.fp32_bytes
            progress("quantizing", done, total)

    (folder / "tables").mkdir()
    files = {}
    for file, members in by_file.items():
        entries = [TableEntry(r.entry, r.rows, table.row_bytes) for table, r in members]
        try:
            files[file] = write_table_file(folder / file, entries, rows_of(members))
        except InputError as error:
            raise WeightsError(str(error)) from error
        except OSError as error:
            raise StorageError(
                f"{folder / file}: cannot be written: {error.strerror}; the tables need "
                f"{size_text(needed)}, {size_text(shutil.disk_usage(folder).free)} are free now"
            ) from error
    return WrittenTables(pieces, files, [meters[table.name].report() for table in plan.tables])


def _ranges(
    plan: FormatPlan, members: Sequence[tuple[StoredTable, PieceRecord]]
) -> Iterator[RowRange]:
    quantization = plan.spec.quantization
    for table, record in members:
        yield RowRange(
            table=table.name,
            weight=plan.weights[table.name],
            row_format=table.row_format,
            first_row=record.first_row,
            last_row=record.first_row + record.rows,
            clip=quantization.clip,
            zero_nonfinite=quantization.nonfinite == "zero",
        )


def _check_room(folder: Path, needed: int) -> None:
    """Refuses what cannot fit before the long work, not after it."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{folder}: the tables need {size_text(needed)}, {size_text(free)} are free"
        )
