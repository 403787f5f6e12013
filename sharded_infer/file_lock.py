"""Locks between processes, on files that others may replace or remove meanwhile."""

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO]:
    """Makes a file if need be, and holds it alone; waits for others.

    Yields:
        The file, to be read and written.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except FileNotFoundError:
            # Its folder was removed after it was made.
            continue
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_same(file.fileno(), path):
                yield file
                return


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
    """
    while True:
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        held = Held(handle)
        fcntl.flock(handle, fcntl.LOCK_SH)
        if _is_same(handle, path):
            return held
        held.close()


@contextmanager
def held_alone(path: Path) -> Iterator[bool]:
    """Holds a file alone if nobody holds it; never waits.

    Yields:
        Whether it is held; False also if there is no such file.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            yield False
            return
        yield _is_same(file.fileno(), path)


def _is_same(handle: int, path: Path) -> bool:
    """Whether an open file is still what lies under its name."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)
