"""A shared memory object as a file: read and written by system calls, never mapped.

A client may truncate or remove its object at any time. Access to a mapping would then end the
process (SIGBUS); a read returns the bytes that exist.
"""

import os
import stat
from types import TracebackType

from kernels.wording import counted
from sharded_infer.errors import NotFoundError, RequestError

# Where Linux has the objects of `shm_open`; no other folder is reached.
FOLDER = "/dev/shm"  # noqa: S108 - no temporary file
_MOST_NAME_BYTES = 255


class RegionFile:
    """An open shared memory object; `identity` differs for another one of the same name."""

    def __init__(self, key: str) -> None:
        """Opens the object by its `shm_open` name: an optional leading slash, and no other.

        Raises:
            RequestError: the name is invalid, or not a shared memory object.
            NotFoundError: the object does not exist, or may not be opened.
        """
        self._key = key
        path = path_of(key)
        # A link would lead out of the folder, and a pipe would block.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._file = os.open(path, flags)
        except OSError as error:
            raise NotFoundError(
                f"shared memory object {key!r} cannot be opened: {error.strerror}"
            ) from error
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._file)
            raise RequestError(f"{key!r} is no shared memory object")
        self.identity = (found.st_dev, found.st_ino)

    def __enter__(self) -> "RegionFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    @property
    def size(self) -> int:
        """Its current bytes."""
        return os.fstat(self._file).st_size

    def read(self, offset: int, count: int) -> bytes:
        """Copies bytes out of it; raises RequestError if it is too short."""
        # Checked first, so that no memory is allocated for missing bytes.
        if self.size >= offset + count:
            parts = []
            at, left = offset, count
            try:
                while left and (part := os.pread(self._file, left, at)):
                    parts.append(part)
                    at, left = at + len(part), left - len(part)
            except OSError as error:
                raise self._failed("read", error) from error
            if not left:
                return b"".join(parts)
        raise self._shorter(offset + count)

    def write(self, offset: int, data: bytes) -> None:
        """Copies bytes into it; raises RequestError if it is too short, or has no room."""
        # A truncation in between loses nothing: the object grows again.
        if self.size < offset + len(data):
            raise self._shorter(offset + len(data))
        view, at = memoryview(data), offset
        try:
            while view:
                done = os.pwrite(self._file, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise self._failed("written", error) from error

    def _failed(self, what: str, error: OSError) -> RequestError:
        return RequestError(
            f"shared memory object {self._key!r} cannot be {what}: {error.strerror}"
        )

    def _shorter(self, needed: int) -> RequestError:
        return RequestError(
            f"shared memory object {self._key!r} has {counted(self.size, 'byte')} "
            f"now, {needed} are needed"
        )


def path_of(key: str) -> str:
    """File of a `shm_open` name; raises RequestError if that is invalid."""
    name = key.removeprefix("/")
    encoded = name.encode("utf-8", "surrogatepass")
    if (
        not name
        or name in {".", ".."}
        or "/" in name
        or "\0" in name
        or len(encoded) > _MOST_NAME_BYTES
    ):
        raise RequestError(
            f"shared memory key {key[:_MOST_NAME_BYTES]!r}: expected a name of at most "
            f"{_MOST_NAME_BYTES} bytes, with no slash but one that leads"
        )
    return f"{FOLDER}/{name}"
