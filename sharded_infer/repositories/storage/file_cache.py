"""Local files of remote versions, by hash; shared by versions and processes.

<cache>/files/<sha256>              whole, hashed on arrival; versions hold hard links to it
<cache>/files/<sha256>.partial      being downloaded, or left by an interrupted download
<cache>/files/<sha256>.rows         some blocks of a table file at their offsets, else holes
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kernels.wording import counted
from sharded_infer.artifacts.block_hashes import BlockHashes
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES
from sharded_infer.artifacts.manifest import BLOCK_BYTES, FileRecord
from sharded_infer.artifacts.row_blocks import Runs, differing_blocks, runs_of
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import ArtifactError, StorageError
from sharded_infer.files.file_lock import held_alone, hold, locked
from sharded_infer.repositories.storage.remote_file import RemoteFile

_PARTIAL = ".partial"
_ROWS = ".rows"
_READ_BYTES = 8 * 2**20


class FileCache:
    """Whole and partial files in a folder. Safe between threads and processes.

    Methods raise StorageError for an unreadable store, a full disk or a foreign change of the
    cache.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def link(self, file: RemoteFile, target: Path, got: Callable[[int], None]) -> None:
        """Link a file into the same file system, downloading or resuming it if necessary.

        `got` is called with the bytes present. Raises ArtifactError if it is missing, altered or of
        another size.
        """
        whole = self._folder / file.record.sha256
        if self._link_whole(whole, file.record, target):
            got(file.record.bytes)
            return
        path = whole.with_name(whole.name + _PARTIAL)
        try:
            with locked(path, grown=lambda: _size(path)) as partial:
                # Its previous lock holder may have finished it.
                if self._link_whole(whole, file.record, target):
                    path.unlink()
                    got(file.record.bytes)
                    return
                try:
                    _complete(partial, file, got)
                except ArtifactError:
                    path.unlink()
                    raise
                path.rename(whole)
                # Still locked, and the lock goes with the file, so no eviction precedes this link.
                _link(whole, target)
        except OSError as error:
            if error.errno is None:
                raise
            raise StorageError(
                f"{path}: cannot be written: {error.strerror}; {file.where} has "
                f"{size_text(file.record.bytes)}, "
                f"{size_text(shutil.disk_usage(self._folder).free)} are free"
            ) from error

    def link_rows(self, record: FileRecord, target: Path) -> None:
        """Link a sparse file of the full size, or the whole file if cached; same file system.

        Does nothing if the target exists. Raises OSError if the disk is not writable.
        """
        whole = self._folder / record.sha256
        if target.exists() or self._link_whole(whole, record, target):
            return
        path = whole.with_name(whole.name + _ROWS)
        with locked(path) as rows:
            if os.fstat(rows.fileno()).st_size < record.bytes:
                rows.truncate(record.bytes)
            _link(path, target)

    def fill(
        self,
        rows: Path,
        file: RemoteFile,
        hashes: BlockHashes,
        wanted: Runs,
        got: Callable[[int], None],
    ) -> None:
        """Download whole blocks into a file linked by `link_rows`.

        Only those of `wanted` that still differ are requested: another process may have fetched
        some. `got` is called with the bytes of each step. Raises ArtifactError if the file is
        missing or of another size, or a block is altered.
        """
        try:
            with locked(rows, grown=lambda: allocated_bytes(rows)) as written:
                missing = [n for n, differs in differing_blocks(rows, hashes, wanted) if differs]
                got(BLOCK_BYTES * (sum(end - first for first, end in wanted) - len(missing)))
                if missing:
                    file.check_size()
                for first, end in runs_of(missing):
                    _download_blocks(written, file, hashes, first, end, got)
                os.fsync(written.fileno())
        except OSError as error:
            if error.errno is None:
                raise
            raise StorageError(
                f"{rows}: cannot be written: {error.strerror}; "
                f"{size_text(shutil.disk_usage(self._folder).free)} are free"
            ) from error

    def used_bytes(self) -> int:
        """Bytes of all files, whole and partial."""
        return sum(size for _, _, size in self._files())

    def holds(self, record: FileRecord) -> int:
        """Bytes of a file that are already present."""
        for name in (record.sha256, record.sha256 + _PARTIAL):
            try:
                return min((self._folder / name).stat().st_size, record.bytes)
            except FileNotFoundError:
                continue
        return 0

    def remove_unused(self, bytes_to_free: int) -> int:
        """Evict unused files, longest unused first, until enough is freed; return freed bytes."""
        freed = 0
        for _, path, size in sorted(self._files()):
            if freed >= bytes_to_free:
                break
            with held_alone(path) as alone:
                if alone and path.stat().st_nlink == 1:
                    path.unlink()
                    freed += size
        return freed

    def _files(self) -> list[tuple[float, Path, int]]:
        found = []
        for path in self._folder.glob("*"):
            try:
                about = path.stat()
            except FileNotFoundError:
                continue
            size = allocated_bytes(path) if path.suffix == _ROWS else about.st_size
            found.append((about.st_mtime, path, size))
        return found

    def _link_whole(self, whole: Path, record: FileRecord, target: Path) -> bool:
        # Locked, so that it is not evicted before the link.
        if (held := hold(whole)) is None:
            return False
        try:
            if (size := held.status().st_size) != record.bytes:
                raise StorageError(
                    f"{whole}: {counted(size, 'byte')}, expected {record.bytes}: "
                    "something else changed the "
                    "cache; remove it"
                )
            os.utime(whole)
            _link(whole, target)
        finally:
            held.close()
        return True


def allocated_bytes(path: Path) -> int:
    """Bytes that a file takes on disk, at most its size; 0 if it is missing."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return 0
    return min(about.st_size, 512 * about.st_blocks)


def _link(whole: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    os.link(whole, target)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _complete(partial: BinaryIO, file: RemoteFile, got: Callable[[int], None]) -> None:
    file.check_size()
    kept, expected = partial.seek(0, os.SEEK_END), file.record.bytes
    if 0 < kept <= expected and _download(partial, file, kept, got) == file.record.sha256:
        return
    if kept:
        # Data left by an interrupted download may be damaged, for example by a power cut.
        got(-expected if kept <= expected else 0)
        partial.truncate(0)
    file.check_hash(_download(partial, file, 0, got))


def _download_blocks(
    rows: BinaryIO,
    file: RemoteFile,
    hashes: BlockHashes,
    first: int,
    end: int,
    got: Callable[[int], None],
) -> None:
    begin, stop = hashes.span(first, end)
    for part in file.parts(begin, stop):
        hashes.check(begin // BLOCK_BYTES, part, file.where)
        view = memoryview(part)
        while view:
            # Up to a multiple of 2 MiB: the page cache keeps such a write as one page.
            count = HUGE_PAGE_BYTES - begin % HUGE_PAGE_BYTES
            written = os.pwrite(rows.fileno(), view[:count], begin)
            begin, view = begin + written, view[written:]
        got(len(part))


def _download(partial: BinaryIO, file: RemoteFile, kept: int, got: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    partial.seek(0)
    while chunk := partial.read(_READ_BYTES):
        digest.update(chunk)
    got(kept)
    for part in file.parts(kept):
        partial.write(part)
        # A killed process leaves everything received.
        partial.flush()
        digest.update(part)
        got(len(part))
    os.fsync(partial.fileno())
    return digest.hexdigest()
