"""Table files: safetensors files of stored rows, written as they come and mapped to be read."""

import hashlib
import json
import mmap
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.mapped_file import MappedFile
from kernels.wording import counted
from sharded_infer.address_space import is_short_of_memory, memory_short
from sharded_infer.errors import ArtifactError, InternalError
from sharded_infer.manifest import FileRecord
from sharded_infer.regular_file import open_regular

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


@dataclass(frozen=True, slots=True)
class MappedTable:
    """One tensor of a mapped table file."""

    entry: TableEntry
    memory: Tensor  # uint8 [bytes of the file], shared by all its tables
    byte_offset: int
    file: MappedFile | None  # None: the memory is a copy


def write_table_file(
    path: Path, entries: Sequence[TableEntry], chunks: Iterable[Tensor]
) -> FileRecord:
    """Writes a table file in one pass; nothing is kept in memory but the chunk at hand.

    Args:
        path: the file to make; it must not exist.
        entries: its tensors, in order.
        chunks: uint8 `[n, row_bytes]`, the rows of all entries one after another.

    Returns:
        Its size and SHA-256.
    """
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
    digest, written = hashlib.sha256(), 0
    head = len(text).to_bytes(8, "little") + text
    with path.open("xb") as file:
        file.write(head)
        digest.update(head)
        for chunk in chunks:
            part = chunk.contiguous().view(-1).numpy().data
            file.write(part)
            digest.update(part)
            written += len(part)
    if written != offset:
        raise InternalError(
            f"{path.name}: {counted(written, 'byte')} of rows came, {offset} were announced"
        )
    return FileRecord(len(head) + offset, digest.hexdigest())


def map_table_file(
    path: Path, copy: Callable[[Path], Tensor] | None = None
) -> dict[str, MappedTable]:
    """Maps a table file for reading; the pages are shared with every process that maps it.

    Args:
        path: the file.
        copy: puts the file's bytes into memory of another kind instead; None maps it.

    Returns:
        Its tensors by name.

    Raises:
        ArtifactError: it is not a table file: a bad header, a hole, an overlap, another dtype.
        CapacityError: there is no memory for it; says how much.
    """
    size = 0
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
                raise ArtifactError(
                    f"{path.name}: its header of {counted(length, 'byte')} cannot be right"
                )
            header = json.loads(file.read(length))
            # Where there is a copy, its file takes no room beside it.
            mapping = b"" if copy else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # Python's JSON reader has no limit of its own on nesting.
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ArtifactError):
            raise
        if is_short_of_memory(error):
            raise memory_short(f"{path.name}: mapping it", size) from error
        raise ArtifactError(f"{path.name}: not a readable safetensors file: {error}") from error
    memory = copy(path) if copy else _bytes_of(mapping)
    mapped = MappedFile(path, mapping) if isinstance(mapping, mmap.mmap) else None
    tables: dict[str, MappedTable] = {}
    expected = 0
    for name, begin, entry in sorted(_entries(path, header), key=lambda item: item[1]):
        if begin != expected:
            raise ArtifactError(f"{path.name}: {name!r} begins at {begin}, expected {expected}")
        tables[name] = MappedTable(entry, memory, 8 + length + begin, mapped)
        expected = begin + entry.stored_bytes
    if 8 + length + expected != size:
        raise ArtifactError(
            f"{path.name}: its tensors end at byte {8 + length + expected}, the file at {size}"
        )
    return tables


def _bytes_of(mapping: mmap.mmap | bytes) -> Tensor:
    with warnings.catch_warnings():
        # torch warns that it cannot mark the tensor read-only; nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(mapping, dtype=torch.uint8)


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
