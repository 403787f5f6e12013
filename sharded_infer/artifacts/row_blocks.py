"""File blocks that hold given rows or ids, and their verification."""

import errno
import mmap
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

from kernels.errors import InputError
from kernels.ids.index_layout import HEADER_BYTES, read_header
from kernels.ids.partition import bytes_of_hashes
from kernels.mapped_file import MappedFile
from sharded_infer.artifacts.artifact import Artifact, open_listed
from sharded_infer.artifacts.block_hashes import BlockHashes
from sharded_infer.artifacts.file_mapping import advise, map_file
from sharded_infer.artifacts.manifest import BLOCK_BYTES
from sharded_infer.artifacts.table_header import (
    header_end,
    holds_piece,
    stored_entries,
    wrong_entry,
)
from sharded_infer.errors import ArtifactError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.progress import Progress, no_progress

# Blocks [first, end), ascending.
Runs = Sequence[tuple[int, int]]
# Blocks mapped at once: verified pages are not retained.
_MAPPED_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Rows of a table in one table file; `first_row` is relative to the table."""

    file: str
    table: str
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids of an id map whose hashes lie in a range, both ends included."""

    file: str
    first_hash: int
    last_hash: int


FileRange = StoredRange | IdRange


def bring_rows(
    artifact: Artifact,
    ranges: Iterable[FileRange],
    bring: Callable[[Mapping[str, Runs]], None],
) -> None:
    """Fetch all blocks that hold these rows (each within one piece) or ids.

    `bring` is called with blocks by file, first those of headers, which locate the rows. On return
    they must be present and verified. Raises ArtifactError if a file disagrees with the manifest.
    """
    by_file: dict[str, list[StoredRange]] = defaultdict(list)
    of_ids: dict[str, list[IdRange]] = defaultdict(list)
    for one in ranges:
        if isinstance(one, StoredRange):
            by_file[one.file].append(one)
        else:
            of_ids[one.file].append(one)
    # Also the last block: its last byte shows a mapping that its file was truncated (`MappedFile`).
    files = artifact.manifest.files
    ends = {file: _blocks(0, files[file].bytes)[1] for file in (*by_file, *of_ids)}
    bring({file: [(0, 1)] if end == 1 else [(0, 1), (end - 1, end)] for file, end in ends.items()})
    headers = {file: _blocks(0, header_end(artifact.path / file))[1] for file in by_file}
    if longer := {file: [(1, end)] for file, end in headers.items() if end > 1}:
        bring(longer)
    rows = {file: _runs(artifact, file, of_file) for file, of_file in by_file.items()}
    bring(rows | {file: _id_runs(artifact, file, of_file) for file, of_file in of_ids.items()})


def verify_rows(
    artifact: Artifact, ranges: Iterable[FileRange], progress: Progress = no_progress
) -> None:
    """Compare the blocks that hold these rows or ids with their hashes; read no others.

    `progress` is called with the bytes read so far. Raises ArtifactError, naming the file or block,
    if it is missing, altered or of another size.
    """

    def verify(wanted: Mapping[str, Runs]) -> None:
        done, total = 0, sum(end - first for runs in wanted.values() for first, end in runs)
        for file, runs in wanted.items():
            path, hashes = artifact.path / file, artifact.block_hashes(file)
            for number, differs in differing_blocks(path, hashes, runs):
                if differs:
                    raise hashes.altered(number, path)
                done += 1
                progress("verifying", BLOCK_BYTES * done, BLOCK_BYTES * total)

    bring_rows(artifact, ranges, verify)


def check_brought(artifact: Artifact, ranges: Iterable[FileRange]) -> None:
    """Refuse rows and ids that were not fetched, unread; ArtifactError names the block."""

    def check(wanted: Mapping[str, Runs]) -> None:
        for file, runs in wanted.items():
            path, hashes = artifact.path / file, artifact.block_hashes(file)
            with open_listed(path, hashes.record) as opened:
                for number in (n for first, end in runs for n in range(first, end)):
                    begin, end = hashes.span(number, number + 1)
                    is_hole = _is_hole(opened.fileno(), begin, end)
                    if is_hole and hashes.hash_of(number) != _hash_of_zeros(end - begin):
                        raise ArtifactError(
                            f"{path}: block {number}, bytes {begin} to {end}: was not fetched, "
                            "since nothing of this process's host was expected there"
                        )

    if artifact.manifest.has_block_hashes:
        bring_rows(artifact, ranges, check)


def differing_blocks(path: Path, hashes: BlockHashes, runs: Runs) -> Iterator[tuple[int, bool]]:
    """Read blocks of a file; yield each one's number, and True if it differs.

    Read blocks stay in the page cache, in 2 MiB pages where the file system has them. Holes are not
    read. Raises ArtifactError if the file is missing, unreadable or of another size.
    """
    with open_listed(path, hashes.record) as file:
        handle, size = file.fileno(), hashes.record.bytes
        mapping = map_file(handle, size, large=True)
        # A file truncated meanwhile reads as zeros, and its hashes differ.
        _watched = MappedFile(path, handle, mapping)
        address: int = np.frombuffer(mapping, np.uint8).ctypes.data
        for first, end in runs:
            for step in range(first, end, _MAPPED_BLOCKS):
                last = min(step + _MAPPED_BLOCKS, end)
                for number in range(step, last):
                    begin, stop = hashes.span(number, number + 1)
                    if _is_hole(handle, begin, stop):
                        yield number, hashes.hash_of(number) != _hash_of_zeros(stop - begin)
                    else:
                        yield number, not hashes.is_block(number, mapping[begin:stop])
                begin, stop = hashes.span(step, last)
                advise(address + begin, stop - begin, mmap.MADV_DONTNEED)


def runs_of(numbers: Iterable[int]) -> Runs:
    """Ascending block numbers, joined where consecutive."""
    return _joined((number, number + 1) for number in numbers)


def _is_hole(handle: int, begin: int, end: int) -> bool:
    try:
        return os.lseek(handle, begin, os.SEEK_DATA) >= end
    except OSError as error:
        # No data follows; another error: the file system cannot tell.
        return error.errno == errno.ENXIO


@cache
def _hash_of_zeros(size: int) -> bytes:
    return sha256(bytes(size)).digest()


def _blocks(begin: int, end: int) -> tuple[int, int]:
    return begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)


def _runs(artifact: Artifact, file: str, ranges: Iterable[StoredRange]) -> Runs:
    entries = stored_entries(artifact.path / file)
    tables = {table.name: table for table in artifact.manifest.tables}
    found: list[tuple[int, int]] = []
    for stored in ranges:
        table = tables[stored.table]
        piece = next(
            piece
            for piece in table.pieces
            if piece.file == file
            and piece.first_row <= stored.first_row < piece.first_row + piece.rows
        )
        row_bytes = table.row_format.row_bytes(table.dim)
        offset, entry = entries.get(piece.entry, (0, None))
        if entry is None or not holds_piece(entry, table, piece):
            raise wrong_entry(table, piece, entry)
        first = stored.first_row - piece.first_row
        begin = offset + first * row_bytes
        # New rows behind the piece are in overlays.
        rows = min(stored.rows, piece.rows - first)
        found.append(_blocks(begin, begin + rows * row_bytes))
    return _joined(sorted(found))


def index_spans(path: Path, ranges: Iterable[IdRange]) -> list[tuple[int, int]]:
    """Searched byte ranges of an id map's file; ArtifactError if unreadable or no index."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            layout = read_header(np.frombuffer(file.read(HEADER_BYTES), np.uint8), size)
    except (OSError, InputError) as error:
        raise ArtifactError(f"{path}: cannot be read as an id map: {error}") from error
    return [bytes_of_hashes(layout, one.first_hash, one.last_hash) for one in ranges]


def _id_runs(artifact: Artifact, file: str, ranges: Iterable[IdRange]) -> Runs:
    spans = index_spans(artifact.path / file, ranges)
    return _joined(sorted(_blocks(begin, end) for begin, end in spans))


def _joined(spans: Iterable[tuple[int, int]]) -> Runs:
    runs: list[tuple[int, int]] = []
    for first, end in spans:
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(end, runs[-1][1])
        else:
            runs.append((first, end))
    return runs
