"""Locks between processes, on files that others may replace or remove meanwhile.

Whoever may read a file may lock it, so that no wait is without end: what is not had in time is a
StorageError that names the file and who holds it.
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
from sharded_infer.regular_file import open_regular, regular_handle

# Far longer than anybody here holds a file alone: for a rename, or an entry of labels.
WAIT_SECONDS = 10.0
# Longer than a store may be silent before a download fails, retries included.
STALLED_SECONDS = 600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.001, 0.1
_BUSY = (errno.EAGAIN, errno.EACCES)
_LOCKS = Path("/proc/locks")


@contextmanager
def locked(path: Path, grown: Callable[[], int] | None = None) -> Iterator[BinaryIO]:
    """Makes a file if need be, and holds it alone; waits for others.

    Args:
        path: the file.
        grown: what changes while whoever holds it is at work, such as the bytes of a download:
            the wait ends only when it stands still. None: the holder should be done in a moment.

    Yields:
        The file, to be read and written.

    Raises:
        StorageError: another process does not let go of it.
        OSError: it cannot be made, or is no regular file.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = regular_handle(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            # Its folder was removed after it was made.
            continue
        with os.fdopen(handle, "r+b") as file:
            if lock(handle, path, grown=grown):
                yield file
                return


@contextmanager
def locked_folder(path: Path) -> Iterator[int]:
    """Holds a folder alone; waits for others.

    Yields:
        Its descriptor.

    Raises:
        StorageError: another process does not let go of it.
        OSError: it cannot be opened.
    """
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
    """Locks an open file or folder; waits for others.

    Args:
        handle: the open file.
        path: its name.
        mode: `LOCK_EX` alone, `LOCK_SH` together with others.
        grown: as in `locked`.

    Returns:
        Whether it is locked; False if it no longer lies under its name.

    Raises:
        StorageError: another process does not let go of it.
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
                f"{limit:g} s: end that process, or have it let go"
            )
        sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


class Held:
    """A file that is held together with others who hold it, until it is closed or collected.

    Processes that are forked meanwhile hold it too: until one of them lets go, or all have ended.
    """

    def __init__(self, handle: int) -> None:
        """Takes over an open file that is locked."""
        self._close = weakref.finalize(self, os.close, handle)
        self._handle = handle

    def status(self) -> os.stat_result:
        """What the file system says of the file."""
        return os.fstat(self._handle)

    def close(self) -> None:
        """Lets go, for processes that were forked meanwhile too; nothing if it did before."""
        if self._close.alive:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
        self._close()


def hold(path: Path) -> Held | None:
    """Holds a file together with others who hold it; waits for one who holds it alone.

    Returns:
        What is held; None if there is no such file.

    Raises:
        StorageError: another process does not let go of it.
        OSError: it cannot be opened, or is no regular file.
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
    """Holds a file alone if nobody holds it; never waits.

    Yields:
        Whether it is held; False also if there is no such file.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
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
    """Whether an open file is still what lies under its name."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _holder(about: os.stat_result) -> str:
    """Who holds a lock on a file, in words, as far as the kernel says it to this process."""
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        # "1: FLOCK  ADVISORY  WRITE 4711 fe:01:1835 0 EOF"; those who wait have "->" in front.
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
