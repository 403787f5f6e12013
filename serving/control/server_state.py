"""State shared by a server's processes: serving workers, and draining.

Each flag is one byte of anonymous shared memory that forks inherit; a byte write is atomic.
"""

import mmap

from serving.host.heartbeat import Heartbeats


class ServerState:
    """Readiness, shared by a server's processes; `heartbeats` are by process number."""

    def __init__(self, workers: int) -> None:
        # Byte 0: draining. Byte 1: every worker has been ready once. Then one byte per worker:
        # serving. Last byte: the standby process, which has no models, accepts HTTP connections.
        self._bytes = mmap.mmap(-1, workers + 3)
        self._reloads = mmap.mmap(-1, 1)
        # Workers without heartbeats, as observed by the first process.
        self._silent = mmap.mmap(-1, workers)
        # Workers whose health service reports that the server accepts requests.
        self._healthy = mmap.mmap(-1, workers)
        # The workers come first, then the standby process and the repository watcher.
        self.heartbeats = Heartbeats(workers + 2)
        self._workers = workers

    @property
    def ready(self) -> bool:
        """True if the server accepts requests.

        All workers have started, one serves, the server is not draining, and no worker is silent. A
        silent worker keeps its connections and gets new ones until it is replaced.
        """
        wanted = self.started and self.serving and not self.draining and not self.silent
        return wanted and not self._bytes[-1]

    @property
    def absence(self) -> str:
        """A short reason why the server is not ready."""
        if self.draining:
            return "draining"
        return "a worker gives no sign of life" if self.silent and self.started else "loading"

    @property
    def serving(self) -> bool:
        """True if any worker is answering requests."""
        pairs = zip(self._bytes[2:-1], self._silent[:], strict=True)
        return any(serves and not silent for serves, silent in pairs)

    @property
    def silent(self) -> bool:
        """True if any worker sends no heartbeats."""
        return any(self._silent[:])

    @property
    def draining(self) -> bool:
        """True if the server is shutting down."""
        return bool(self._bytes[0])

    @property
    def started(self) -> bool:
        """True if every worker has been ready once."""
        return bool(self._bytes[1])

    @property
    def healthy(self) -> bool:
        """True if every worker's health service reports that the server accepts requests."""
        return all(self._healthy[:])

    @property
    def reloads(self) -> int:
        """Changes when processes should reload their files."""
        return self._reloads[0]

    def ask_reload(self) -> None:
        """Makes every process reload files that may have changed, such as tokens."""
        self._reloads[0] = (self._reloads[0] + 1) % 256

    def drain(self) -> None:
        """Marks the server as shutting down and therefore not ready."""
        self._bytes[0] = 1

    def set_standby_open(self, is_open: bool) -> None:
        """Records whether the standby process, which has no models, accepts HTTP connections.

        The server is not ready while it does, because its clients would find no models.
        """
        self._bytes[-1] = is_open

    def set_silent(self, worker: int, silent: bool) -> None:
        """Records whether a worker (from 0) sends no heartbeats; only the first process calls."""
        self._silent[worker] = silent

    def set_healthy(self, worker: int, healthy: bool) -> None:
        """Records the report of a worker's (from 0) health service."""
        self._healthy[worker] = healthy

    def set_serving(self, worker: int, serving: bool) -> None:
        """Records whether a worker (from 0) answers requests."""
        self._bytes[worker + 2] = serving
        if all(self._bytes[2:-1]):
            self._bytes[1] = 1
