"""Files of remote versions on this machine, by their content; shared by versions and processes.

<cache>/files/<sha256>              whole, hashed while it came; versions hold hard links to it
<cache>/files/<sha256>.partial      being downloaded, or left by a download that broke off
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kernels.wording import counted
from sharded_infer.errors import ArtifactError, StorageError
from sharded_infer.file_lock import held_alone, hold, locked
from sharded_infer.manifest import FileRecord
from sharded_infer.remote_file import RemoteFile
from sharded_infer.sizes import size_text

_PARTIAL = ".partial"
_READ_BYTES = 8 * 2**20


class FileCache:
    """Whole and partial files in a folder. Safe between threads and processes."""

    def __init__(self, folder: Path) -> None:
        """Names the folder; it is made when the first file comes."""
        self._folder = folder

    def link(self, file: RemoteFile, target: Path, got: Callable[[int], None]) -> None:
        """Puts a file in its place: from the cache, or from afar.

        A download that broke off goes on from where it stopped.

        Args:
            file: the file.
            target: its place, in the cache's file system.
            got: told the bytes that are there now.

        Raises:
            ArtifactError: it is missing, short, long or altered.
            StorageError: the store cannot be read, or the disk is full.
        """
        whole = self._folder / file.record.sha256
        if self._link_whole(whole, file.record, target):
            got(file.record.bytes)
            return
        path = whole.with_name(whole.name + _PARTIAL)
        try:
            with locked(path, grown=lambda: _size(path)) as partial:
                # Whoever held it before may have finished it.
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
                # Still locked, and the lock goes with the file: nobody evicts it before this link.
                _link(whole, target)
        except OSError as error:
            if error.errno is None:
                raise
            raise StorageError(
                f"{path}: cannot be written: {error.strerror}; {file.where} has "
                f"{size_text(file.record.bytes)}, "
                f"{size_text(shutil.disk_usage(self._folder).free)} are free"
            ) from error

    def used_bytes(self) -> int:
        """Bytes of all files, whole and partial."""
        return sum(size for _, _, size in self._files())

    def holds(self, record: FileRecord) -> int:
        """Bytes of a file that are there already."""
        for name in (record.sha256, record.sha256 + _PARTIAL):
            try:
                return min((self._folder / name).stat().st_size, record.bytes)
            except FileNotFoundError:
                continue
        return 0

    def remove_unused(self, bytes_to_free: int) -> int:
        """Removes files that no version holds and nobody downloads, the longest unused first.

        Args:
            bytes_to_free: no more are removed than this takes.

        Returns:
            Bytes freed.
        """
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
            found.append((about.st_mtime, path, about.st_size))
        return found

    def _link_whole(self, whole: Path, record: FileRecord, target: Path) -> bool:
        # Held, so that it is not evicted before the link.
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
        # What an interrupted download left may be damaged, by a power cut for one.
        got(-expected if kept <= expected else 0)
        partial.truncate(0)
    file.check_hash(_download(partial, file, 0, got))


def _download(partial: BinaryIO, file: RemoteFile, kept: int, got: Callable[[int], None]) -> str:
    """Appends the rest of a file; the SHA-256 of all that is there then."""
    digest = hashlib.sha256()
    partial.seek(0)
    while chunk := partial.read(_READ_BYTES):
        digest.update(chunk)
    got(kept)
    for part in file.parts(kept):
        partial.write(part)
        # A process that is killed leaves all that came.
        partial.flush()
        digest.update(part)
        got(len(part))
    os.fsync(partial.fileno())
    return digest.hexdigest()
