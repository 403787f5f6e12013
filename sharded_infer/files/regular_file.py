"""Foreign files: opened only if regular, read up to a bound.

Opening a FIFO waits for a writer, a device may never end, and a link leads anywhere. Refusals are
OSErrors with the reason; callers name the file.
"""

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_BLOCK_BYTES = 2 * 2**20
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file (a link if `follow`) without waiting; OSError otherwise."""
    return os.fdopen(regular_handle(path, os.O_RDONLY, follow=follow), "rb")


def regular_handle(path: Path, flags: int, *, follow: bool = False) -> int:
    """As `open_regular`, but returns a descriptor; `flags` are those of `os.open`."""
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
    """Read a regular file (a link if `follow`) of at most `max_bytes`; OSError otherwise."""
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        # One byte more: it may have grown since.
        if size > max_bytes or len(content := file.read(max_bytes + 1)) > max_bytes:
            message = f"{size} bytes, expected at most {max_bytes}"
            raise OSError(errno.EFBIG, message, str(path))
    return content


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield a regular file's bytes, 2 MiB at a time; OSError otherwise."""
    with open_regular(path) as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def write_file(path: Path, content: bytes) -> None:
    """Write a file that a user names: a regular one, or a FIFO or device with a reader.

    Raises OSError if it is not writable, or is a FIFO without a reader.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refusal(path: Path, about: os.stat_result) -> OSError:
    kind = _KINDS.get(stat.S_IFMT(about.st_mode), "something else")
    return OSError(errno.EINVAL, f"expected a regular file, got {kind}", str(path))
