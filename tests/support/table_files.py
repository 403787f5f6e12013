"""Writes whole table files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.artifacts.table_file import write_hashes, write_rows
from sharded_infer.artifacts.table_header import TableEntry, table_file_head


class WrittenFile(NamedTuple):
    table: FileRecord
    blocks: FileRecord


def write_table_file(
    path: Path, entries: Sequence[TableEntry], chunks: Iterable[Tensor]
) -> WrittenFile:
    stored_bytes = sum(entry.stored_bytes for entry in entries)
    written = write_rows(path, table_file_head(entries), stored_bytes, chunks)
    return WrittenFile(written.record, write_hashes(path, written.hashes))
