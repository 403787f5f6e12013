"""Table files: safetensors files of stored rows, streamed out and mapped for reading."""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

from torch import Tensor

from kernels.mapped_file import MappedFile
from kernels.wording import counted
from sharded_infer.address_space import is_short_of_memory, memory_short
from sharded_infer.artifacts.block_hashes import BlockHasher
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, map_file
from sharded_infer.artifacts.file_pages import tensor_of
from sharded_infer.artifacts.manifest import FileRecord, blocks_name
from sharded_infer.artifacts.table_header import TableEntry, read_entries, unreadable
from sharded_infer.errors import InternalError
from sharded_infer.files.regular_file import open_regular


@dataclass(frozen=True, slots=True)
class MappedTable:
    """One tensor of a mapped table file."""

    entry: TableEntry
    memory: Tensor  # uint8 [bytes of the file], shared by all its tables
    byte_offset: int
    file: MappedFile | None  # None: the memory is a copy


class HashedFile(NamedTuple):
    """A written file: its record, and its block hashes as `block_hashes` reads them."""

    record: FileRecord
    hashes: bytes


def write_rows(path: Path, head: bytes, stored_bytes: int, chunks: Iterable[Tensor]) -> HashedFile:
    """Write a new table file, or a range of one, with one chunk in memory at a time.

    `head` are the bytes before the first row, see `table_file_head`; `stored_bytes` those of all
    rows; `chunks` uint8 `[n, row_bytes]`, the rows of all entries successively.
    """
    rows = (chunk.contiguous().view(-1).numpy().data for chunk in chunks)
    written = write_parts(path, chain((head,), rows))
    if written.record.bytes != len(head) + stored_bytes:
        raise InternalError(
            f"{path.name}: {counted(written.record.bytes - len(head), 'byte')} of rows came, "
            f"{stored_bytes} were announced"
        )
    return written


def write_parts(path: Path, parts: Iterable[bytes | memoryview]) -> HashedFile:
    """Write a new file in one pass, with one part in memory at a time."""
    digest, blocks, written = hashlib.sha256(), BlockHasher(), 0
    with path.open("xb", buffering=HUGE_PAGE_BYTES) as file:
        for part in parts:
            _write_in_blocks(file, memoryview(part), written)
            digest.update(part)
            blocks.update(part)
            written += len(part)
    return HashedFile(FileRecord(written, digest.hexdigest()), blocks.finish())


def write_hashes(path: Path, hashes: bytes) -> FileRecord:
    """Write the hashes of a table file's blocks beside it."""
    with path.with_name(blocks_name(path.name)).open("xb") as file:
        file.write(hashes)
    return FileRecord(len(hashes), hashlib.sha256(hashes).hexdigest())


def _write_in_blocks(file: BinaryIO, part: memoryview, position: int) -> None:
    """Fill the file's 2 MiB buffer to its end: the page cache keeps each block as one folio."""
    first = 0
    while first < len(part):
        last = first + HUGE_PAGE_BYTES - (position + first) % HUGE_PAGE_BYTES
        file.write(part[first:last])
        first = last


def map_table_file(
    path: Path, copy: Callable[[Path], Tensor] | None = None, *, large: bool = False
) -> dict[str, MappedTable]:
    """Map a table file for reading, in 2 MiB pages if `large`, or copy it with `copy`.

    Mapped pages are shared between processes. Raises ArtifactError for a bad header, a hole, an
    overlap or another dtype; CapacityError with the size if memory is short.
    """
    size = 0
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            entries = read_entries(file, path, size)
            # A copy needs no mapping of its file beside it.
            mapping = memoryview(b"") if copy else map_file(file.fileno(), size, large=large)
            mapped = None if copy else MappedFile(path, file.fileno(), mapping)
    except (OSError, MemoryError) as error:
        if is_short_of_memory(error):
            raise memory_short(f"{path.name}: mapping it", size) from error
        raise unreadable(path, error) from error
    memory = copy(path) if copy else tensor_of(mapping)
    return {
        name: MappedTable(entry, memory, offset, mapped)
        for name, (offset, entry) in entries.items()
    }
