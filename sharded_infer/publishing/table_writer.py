"""Chunked quantization of a model's tables into table files."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quant.encoder import encoder_name
from quant.error_meter import ErrorMeter
from quant.report import TableReport
from quant.stream import EncodedChunk, RowRange, encode_ranges
from sharded_infer.artifacts.manifest import FileRecord, PieceRecord, blocks_name
from sharded_infer.artifacts.table_file import HashedFile, write_hashes, write_rows
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError, StorageError, WeightsError
from sharded_infer.progress import ENCODING, Progress
from sharded_infer.publishing.format_selection import FormatPlan
from sharded_infer.publishing.table_layout import lay_out
from sharded_infer.publishing.table_shares import FileShare, TableRange, share_of


@dataclass(frozen=True, slots=True)
class WrittenTables:
    """The table files with their block hashes, and reports in table order.

    `encoder`: see `QuantizationReport`.
    """

    pieces: dict[str, list[PieceRecord]]
    files: dict[str, FileRecord]
    reports: list[TableReport]
    encoder: str


def write_tables(folder: Path, plan: FormatPlan, progress: Progress) -> WrittenTables:
    """Write `tables/` of a version; `progress` is called with the fp32 bytes done.

    Raises:
        WeightsError: a row cannot be stored; names the table and the row.
        StorageError: the tables do not fit the disk, or writing failed; gives the bytes needed.
    """
    meters = table_meters(plan)
    pieces = lay_out(plan.tables)
    shares = share_of(plan.tables, pieces)
    written = write_shares(folder, plan, shares, lambda c: meters[c.table].add(c.errors), progress)
    reports = [meters[table.name].report() for table in plan.tables]
    return WrittenTables(pieces, with_hashes(folder, written), reports, encoder_name())


def table_meters(plan: FormatPlan) -> dict[str, ErrorMeter]:
    """An error meter of each table, by name."""
    return {
        t.name: ErrorMeter(t.name, t.row_format, t.dim, plan.reasons[t.name]) for t in plan.tables
    }


def write_shares(
    folder: Path,
    plan: FormatPlan,
    shares: Sequence[FileShare],
    encoded: Callable[[EncodedChunk], None],
    progress: Progress,
) -> dict[str, HashedFile]:
    """Write ranges of table files, each under its file's name; errors as `write_tables`.

    `encoded` is called with each chunk, in order; `progress` with the fp32 bytes done.
    """
    total = sum(rows.fp32_bytes for share in shares for rows in share.ranges)
    needed = sum(share.bytes for share in shares)
    check_room(folder, needed)
    done = 0

    def rows_of(share: FileShare) -> Iterator[Tensor]:
        nonlocal done
        for chunk in encode_ranges(_row_range(plan, rows) for rows in share.ranges):
            encoded(chunk)
            yield chunk.stored
            done += chunk.fp32_bytes
            progress(ENCODING, done, total)

    (folder / "tables").mkdir()
    written = {}
    for share in shares:
        path = folder / share.file
        try:
            written[share.file] = write_rows(path, share.head, share.stored_bytes, rows_of(share))
        except InputError as error:
            raise WeightsError(str(error)) from error
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be written: {error.strerror}; the tables need "
                f"{size_text(needed)}, {size_text(shutil.disk_usage(folder).free)} are free now"
            ) from error
    return written


def with_hashes(folder: Path, written: Mapping[str, HashedFile]) -> dict[str, FileRecord]:
    """Write block hashes beside whole table files; return the records of both."""
    files: dict[str, FileRecord] = {}
    for file, its in written.items():
        files |= {file: its.record, blocks_name(file): write_hashes(folder / file, its.hashes)}
    return files


def _row_range(plan: FormatPlan, rows: TableRange) -> RowRange:
    quantization = plan.spec.quantization
    return RowRange(
        table=rows.table.name,
        weight=plan.weights[rows.table.name],
        row_format=rows.table.row_format,
        first_row=rows.first_row,
        last_row=rows.last_row,
        clip=quantization.clip,
        zero_nonfinite=quantization.nonfinite == "zero",
    )


def check_room(folder: Path, needed: int) -> None:
    """Refuse output that cannot fit, before the long work."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{folder}: the tables need {size_text(needed)}, {size_text(free)} are free"
        )
