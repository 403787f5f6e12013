"""A Unix socket that a server listens on, and its file."""

import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path

from serving.host.listeners import BACKLOG
from sharded_infer.errors import InputError

SCHEME = "unix:"
# Of `sockaddr_un`, without the zero byte at its end (unix(7)).
MOST_PATH_BYTES = 107
_LOCK_SECONDS, _LOCK_STEP = 10.0, 0.01


def check_path(path: str) -> None:
    """Raise InputError if a Unix socket's path is empty, too long, or has a zero byte."""
    size = len(os.fsencode(path))
    if not 0 < size <= MOST_PATH_BYTES:
        raise InputError(
            f"a Unix socket: expected a path of 1 to {MOST_PATH_BYTES} bytes, got {size}: {path!r}"
        )
    if "\0" in path:
        raise InputError(f"a Unix socket: expected a path without zero bytes, got {path!r}")


class UnixSocket:
    """A socket that listens at once. The creating process's umask sets the file's mode."""

    def __init__(self, path: str) -> None:
        """Replace a stale file; InputError if another process listens there, or on failure."""
        self.path = path
        self._owner = os.getpid()
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Of two servers that meet an old file, the second must not remove the first's.
            with _LockedFolder(Path(path).parent):
                _remove_stale(path)
                self._socket.bind(path)
                self._file = os.lstat(path)
                self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise InputError(f"socket {path} cannot be had: {error.strerror}") from error
        except InputError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def take(self) -> socket.socket:
        """Move the listening socket out of this process's object; forked workers have one each."""
        taken, self._socket = self._socket, None
        if taken is None:
            raise ValueError(f"{self.path}: the socket was taken before")
        return taken

    def close(self) -> None:
        """Stop listening in this process; the process that created the file removes it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if os.getpid() != self._owner:
            return
        self._owner = 0
        try:
            # Another server may have taken the path since.
            if os.path.samestat(os.lstat(self.path), self._file):
                os.unlink(self.path)
        except OSError:
            # The folder is gone or read-only: the next server removes the stale file.
            pass


class _LockedFolder:
    """A lock of a folder, which leaves no file behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    os.close(self._descriptor)
                    raise
            time.sleep(_LOCK_STEP)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InputError(f"socket {path} cannot be had: the file there is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full backlog must not block.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINPROGRESS):
                raise
    raise InputError(f"socket {path} cannot be had: another process listens there")
