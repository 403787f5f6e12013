"""What the processes of one server know of each other: who serves, and whether it ends.

One byte each in anonymous shared memory that forks inherit; a byte is written whole.
"""

import mmap

from serving.heartbeat import Heartbeats
from serving.log_control import LogControl
from serving.shared_memory import SharedMemory


class ServerState:
    """Readiness, and what clients have told the server; shared by its processes.

    Attributes:
        memory: the shared memory that clients have registered; None: that is not offered.
        logs: what is logged.
        heartbeats: of its processes, by their numbers.
    """

    def __init__(self, workers: int, memory: SharedMemory | None = None) -> None:
        """Begins with nobody ready.

        Args:
            workers: processes that answer requests.
            memory: for what clients register; None: they may not.
        """
        self.memory = memory
        self.logs = LogControl()
        # The first byte: draining. The second: every worker has been ready once. The last: HTTP
        # connections may come to a process without models.
        self._bytes = mmap.mmap(-1, workers + 3)
        self._reloads = mmap.mmap(-1, 1)
        # Workers that give no sign of life, by the first process.
        self._silent = mmap.mmap(-1, workers)
        # The workers', and at the end the desk's and the follower's.
        self.heartbeats = Heartbeats(workers + 2)
        self._workers = workers

    @property
    def ready(self) -> bool:
        """Whether the server wants requests.

        All workers have started, one serves, none drains, and none is silent: it has connections,
        and is given new ones, until it is replaced.
        """
        wanted = self.started and self.serving and not self.draining and not self.silent
        return wanted and not self._bytes[-1]

    @property
    def absence(self) -> str:
        """Why the server wants no requests, in a word or some."""
        if self.draining:
            return "draining"
        return "a worker gives no sign of life" if self.silent and self.started else "loading"

    @property
    def serving(self) -> bool:
        """Whether any worker answers requests."""
        pairs = zip(self._bytes[2:-1], self._silent[:], strict=True)
        return any(serves and not silent for serves, silent in pairs)

    @property
    def silent(self) -> bool:
        """Whether a worker gives no sign of life."""
        return any(self._silent[:])

    @property
    def draining(self) -> bool:
        """Whether the server ends."""
        return bool(self._bytes[0])

    @property
    def started(self) -> bool:
        """Whether every worker has been ready once."""
        return bool(self._bytes[1])

    @property
    def reloads(self) -> int:
        """A number that changes when files are to be read again."""
        return self._reloads[0]

    def ask_reload(self) -> None:
        """Has every process read again what may have changed, such as tokens."""
        self._reloads[0] = (self._reloads[0] + 1) % 256

    def drain(self) -> None:
        """The server ends: it is not ready any more."""
        self._bytes[0] = 1

    def set_desk_open(self, is_open: bool) -> None:
        """Says whether the desk, which has no models, accepts HTTP connections.

        A server is not ready before it does not: a client that is told so finds the models.

        Args:
            is_open: whether it does.
        """
        self._bytes[-1] = is_open

    def set_silent(self, worker: int, silent: bool) -> None:
        """Says whether a worker gives no sign of life; the first process alone does.

        Args:
            worker: its number, from 0.
            silent: whether it does not.
        """
        self._silent[worker] = silent

    def set_serving(self, worker: int, serving: bool) -> None:
        """Says whether a worker answers requests.

        Args:
            worker: its number, from 0.
            serving: whether it does.
        """
        self._bytes[worker + 2] = serving
        if all(self._bytes[2:-1]):
            self._bytes[1] = 1
