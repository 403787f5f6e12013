"""The header of a table file, before the rows."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kernels.wording import counted
from sharded_infer.artifacts.manifest import PieceRecord, TableRecord
from sharded_infer.errors import ArtifactError
from sharded_infer.files.regular_file import open_regular

_ALIGNMENT = 64  # of the first row, bytes: a cache line
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One tensor of a table file: uint8 `[rows, row_bytes]`."""

    name: str
    rows: int
    row_bytes: int

    @property
    def stored_bytes(self) -> int:
        """Bytes of all its rows."""
        return self.rows * self.row_bytes


def table_file_head(entries: Sequence[TableEntry]) -> bytes:
    """The bytes of a table file before its first row."""
    header: dict[str, object] = {}
    offset = 0
    for entry in entries:
        end = offset + entry.stored_bytes
        header[entry.name] = {
            "dtype": "U8",
            "shape": [entry.rows, entry.row_bytes],
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # The format pads its header with spaces.
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def header_end(path: Path) -> int:
    """The offset of a table file's first row; ArtifactError if unreadable or impossible."""
    with _opened(path) as (file, size):
        return 8 + _header_bytes(file, path, size)


def stored_entries(path: Path) -> dict[str, tuple[int, TableEntry]]:
    """Each tensor's first byte and entry, by name; ArtifactError as `map_table_file`."""
    with _opened(path) as (file, size):
        return read_entries(file, path, size)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    try:
        with open_regular(path) as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> ArtifactError:
    """The error of a file that is not a table file."""
    return ArtifactError(f"{path.name}: not a readable safetensors file: {error}")


def _header_bytes(file: BinaryIO, path: Path, size: int) -> int:
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
        raise ArtifactError(f"{path.name}: its header of {counted(length, 'byte')} cannot be right")
    return length


def read_entries(file: BinaryIO, path: Path, size: int) -> dict[str, tuple[int, TableEntry]]:
    """As `stored_entries`, of an open file of `size` bytes."""
    length = _header_bytes(file, path, size)
    try:
        header = json.loads(file.read(length))
    # Python's JSON reader does not limit nesting itself.
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error) from error
    found: dict[str, tuple[int, TableEntry]] = {}
    expected = 0
    for name, begin, entry in sorted(_entries(path, header), key=lambda item: item[1]):
        if begin != expected:
            raise ArtifactError(f"{path.name}: {name!r} begins at {begin}, expected {expected}")
        found[name] = 8 + length + begin, entry
        expected = begin + entry.stored_bytes
    if 8 + length + expected != size:
        raise ArtifactError(
            f"{path.name}: its tensors end at byte {8 + length + expected}, the file at {size}"
        )
    return found


def _entries(path: Path, header: object) -> list[tuple[str, int, TableEntry]]:
    if not isinstance(header, dict):
        raise ArtifactError(f"{path.name}: its header is not a JSON object")
    found = []
    for name, fields in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, (rows, row_bytes) = fields["dtype"], fields["shape"]
            begin, end = fields["data_offsets"]
            numbers = (rows, row_bytes, begin, end)
            fits = all(type(n) is int and n >= 0 for n in numbers) and (
                end - begin == rows * row_bytes
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ArtifactError(f"{path.name}: {name!r}: not a tensor's entry") from error
        if dtype != "U8" or not fits:
            raise ArtifactError(
                f"{path.name}: {name!r}: expected U8 [rows, row_bytes] that fills its range, "
                f"got {dtype} {[rows, row_bytes]} in {[begin, end]}"
            )
        found.append((name, begin, TableEntry(name, rows, row_bytes)))
    return found


def holds_piece(entry: TableEntry, table: TableRecord, piece: PieceRecord) -> bool:
    """True if a tensor of a table file has the shape of a piece's rows."""
    return (entry.rows, entry.row_bytes) == (piece.rows, table.row_format.row_bytes(table.dim))


def wrong_entry(table: TableRecord, piece: PieceRecord, entry: TableEntry | None) -> ArtifactError:
    """The error of a tensor that does not hold a piece's rows, or is missing."""
    return ArtifactError(
        f"{piece.file}: {piece.entry!r}: expected {counted(piece.rows, 'row')} of "
        f"{counted(table.row_format.row_bytes(table.dim), 'byte')} for table {table.name!r}, got "
        f"{None if entry is None else (entry.rows, entry.row_bytes)}"
    )
