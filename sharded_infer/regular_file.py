"""Files that others may have put there: opened only if they are regular, read up to a bound.

Opening a FIFO waits for a writer, a device may never end, and a link leads anywhere. What is
refused here is an OSError like any other that opening a file may raise; callers name the file.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Opens a file for reading, without ever waiting.

    Args:
        path: the file.
        follow: whether it may be a symbolic link, as a path that a user gives may be.

    Raises:
        OSError: it cannot be opened, or is no regular file; says what it is.
    """
    return os.fdopen(regular_handle(path, os.O_RDONLY, follow=follow), "rb")


def regular_handle(path: Path, flags: int, *, follow: bool = False) -> int:
    """The same as a descriptor, for whatever `flags` of `os.open` say."""
    flags |= os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        # A link that is not followed, or a socket.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _refusal(path, path.stat() if follow else path.lstat()) from error
        raise
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise _refusal(path, about)
    return handle


def read_regular(path: Path, max_bytes: int, *, follow: bool = False) -> bytes:
    """Reads a whole file of bounded size.

    Args:
        path: the file.
        max_bytes: what it may have; a larger one is not read.
        follow: whether it may be a symbolic link.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger; says what it is.
    """
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        # One byte more: it may have grown since.
        if size > max_bytes or len(content := file.read(max_bytes + 1)) > max_bytes:
            message = f"{size} bytes, expected at most {max_bytes}"
            raise OSError(errno.EFBIG, message, str(path))
    return content


def write_file(path: Path, content: bytes) -> None:
    """Writes a file that a user names: a regular one, or a FIFO or device that somebody reads.

    Raises:
        OSError: it cannot be written; a FIFO that nobody reads is not waited for.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _refusal(path: Path, about: os.stat_result) -> OSError:
    kind = _KINDS.get(stat.S_IFMT(about.st_mode), "something else")
    return OSError(errno.EINVAL, f"expected a regular file, got {kind}", str(path))
