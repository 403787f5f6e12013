"""A client that wants the server to fall, and what the server is left with."""

import itertools
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from tests.attacks.raw_http2 import connect

# Each attacker has an address of its own, as what one does is held against its address.
_ADDRESSES = (f"127.66.{n // 250}.{n % 250 + 1}" for n in itertools.count())
MIB = 2**20
# What the allocator may keep, and a pool's threads and their files.
_MOST_MEMORY, _MOST_FILES, _MOST_THREADS = 100 * MIB, 8, 8


@dataclass(frozen=True, slots=True)
class Target:
    """Where a gRPC server answers, and a call that it answers.

    Attributes:
        address: HOST:PORT.
        path: /service/Method, of a unary call.
        message: of a good call.
        credentials: of honest clients, where the server wants TLS.
    """

    address: str
    path: bytes
    message: bytes
    credentials: grpc.ChannelCredentials | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is attacked.

    Attributes:
        answer: to the target's good call.
        pid: of the process that answers.
    """

    target: Target
    answer: bytes
    pid: int


class Attacker:
    """A thread that repeats an attack until it is stopped; whatever it meets is no error."""

    def __init__(
        self, target: Target, attack: Callable[["Attacker"], None], source: str | None = None
    ) -> None:
        """Begins nothing yet; without a source it has an address of its own."""
        self.target = target
        self._source = source or next(_ADDRESSES)
        self._clients = ExitStack()
        self._stop = threading.Event()
        # That the attack has sent all it wants to at least once.
        self.struck = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(attack,), daemon=True)

    def _run(self, attack: Callable[["Attacker"], None]) -> None:
        while not self.stopped:
            with suppress(OSError):
                attack(self)
            self.struck.set()
            self._clients.close()

    def __enter__(self) -> "Attacker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def connect(self, opening: bytes | None = None) -> socket.socket:
        """A connection that stays open while the attack does, a second for each step."""
        client = connect(self.target.address, source=self._source, opening=opening)
        client.settimeout(1)
        return self._clients.enter_context(client)

    def pause(self, seconds: float | None = None) -> None:
        """Waits, at most until the end of the attack."""
        self.struck.set()
        self._stop.wait(seconds)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process takes of its machine.

    Attributes:
        memory: bytes that are its own and of no file.
        files: its descriptors.
    """

    memory: int
    files: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        process = Path(f"/proc/{pid}")
        lines = (process / "smaps_rollup").read_text().splitlines()
        (memory,) = (int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
        files = sum(1 for _ in (process / "fd").iterdir())
        return cls(memory * 1024, files, sum(1 for _ in (process / "task").iterdir()))

    def is_about(self, before: "Footprint") -> bool:
        """Whether an attack has left nothing of note behind."""
        return (
            self.memory - before.memory < _MOST_MEMORY
            and self.files - before.files <= _MOST_FILES
            and self.threads - before.threads <= _MOST_THREADS
        )
