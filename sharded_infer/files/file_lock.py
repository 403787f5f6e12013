"""Locks between processes, on files that others may replace or remove meanwhile.

Any process that may read a file may lock it. Every wait is therefore bounded: a lock that does not
come in time raises StorageError, which names the file and the holder.
"""

import errno
import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from sharded_infer.errors import StorageError
from sharded_infer.files.regular_file import open_regular, regular_handle

# Far longer than any exclusive use of a file here: a rename, or a change of labels.
WAIT_SECONDS = 10.0
# Longer than a store may be silent before a download fails, retries included.
STALLED_SECONDS = 600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.1
_BUSY = (errno.EAGAIN, errno.EACCES)
_LOCKS = Path("/proc/locks")


@contextmanager
def locked(path: Path, grown: Callable[[], int] | None = None) -> Iterator[BinaryIO]:
    """Lock a file exclusively, creating it if missing; yield it open for reading and writing.

    `grown` is a figure that changes while the holder works, such as a download's bytes: the wait
    ends when it stands still. None: the holder should finish soon. Raises StorageError if another
    process keeps the lock, OSError if the file cannot be created or is irregular.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = regular_handle(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            # Its folder was removed after creation.
            continue
        with os.fdopen(handle, "r+b") as file:
            if lock(handle, path, grown=grown):
                yield file
                return


@contextmanager
def locked_folder(path: Path) -> Iterator[int]:
    """Lock a folder exclusively; yield its descriptor; errors as `locked`."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not lock(handle, path):
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile", str(path))
        yield handle
    finally:
        os.close(handle)


def lock(
    handle: int,
    path: Path,
    mode: int = fcntl.LOCK_EX,
    grown: Callable[[], int] | None = None,
) -> bool:
    """Lock an open file or folder with `LOCK_EX` or `LOCK_SH`; waits as `locked`.

    False if it no longer lies at `path`. Raises StorageError if another process keeps the lock.
    """
    limit = WAIT_SECONDS if grown is None else STALLED_SECONDS
    pause, since, seen = _FIRST_PAUSE_SECONDS, monotonic(), grown and grown()
    while True:
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
        else:
            return _is_same(handle, path)
        if not _is_same(handle, path):
            return False
        if grown is not None and (now := grown()) != seen:
            since, seen = monotonic(), now
        if monotonic() - since > limit:
            raise StorageError(
                f"{path}: {_holder(os.fstat(handle))} has held a lock on it for more than "
                f"{limit:g} s: end that process, or have it release the lock"
            )
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class Held:
    """A file with a shared lock, until it is closed or collected.

    Processes forked meanwhile share the lock: it ends when one closes it, or all have ended.
    """

    def __init__(self, handle: int) -> None:
        self._close = weakref.finalize(self, os.close, handle)
        self._handle = handle

    def status(self) -> os.stat_result:
        """The file system's record of the file."""
        return os.fstat(self._handle)

    def close(self) -> None:
        """Release the lock, for forked processes too; idempotent."""
        if self._close.alive:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
        self._close()


def hold(path: Path) -> Held | None:
    """Lock a file shared; waits for an exclusive holder; None if there is no such file.

    Raises StorageError if another process keeps the lock, OSError if it cannot be opened or is
    irregular.
    """
    while True:
        try:
            handle = regular_handle(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        held = Held(handle)
        if lock(handle, path, fcntl.LOCK_SH):
            return held
        held.close()


@contextmanager
def held_alone(path: Path) -> Iterator[bool]:
    """Lock a file exclusively without waiting; yield False if locked elsewhere or missing."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                raise
            yield False
            return
        yield _is_same(file.fileno(), path)


def _is_same(handle: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _holder(about: os.stat_result) -> str:
    """The process that locks a file, as text, if the kernel reveals it."""
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        # "1: FLOCK  ADVISORY  WRITE 4711 fe:01:1835 0 EOF"; waiting processes have "->" in front.
        fields = line.split()
        if fields[1:2] == ["FLOCK"] and fields[5].rpartition(":")[2] == str(about.st_ino):
            return f"process {fields[4]}{_command(fields[4])}"
    return "another process"


def _command(process: str) -> str:
    try:
        name = Path("/proc", process, "comm").read_text().strip()
    except OSError:
        return ""
    return f" ({name!r})"
