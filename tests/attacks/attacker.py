"""Clients that want the server to fall, and one that expects the right answer each time."""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from tests.attacks.raw_http2 import connect
from tests.support.waiting import until

# Each attacker has an address of its own, as what one does is held against its address.
_ADDRESSES = (f"127.66.{n // 250}.{n % 250 + 1}" for n in itertools.count())
MIB = 2**20
# What the allocator may keep, and a pool's threads and their files.
_MOST_MEMORY, _MOST_FILES, _MOST_THREADS = 100 * MIB, 8, 8


@dataclass(frozen=True, slots=True)
class Target:
    """Where a gRPC server answers, and a good call of a unary method, `/service/Method`."""

    address: str
    path: bytes
    message: bytes
    credentials: grpc.ChannelCredentials | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is attacked, and its answer to the target's good call."""

    target: Target
    answer: bytes
    pid: int
    http_address: str = ""


Attack = Callable[["Attacker"], None]


class Attacker:
    """A thread that repeats an attack until it is stopped; whatever it meets is no error."""

    def __init__(self, target: Target, attack: Attack, source: str | None = None) -> None:
        """Begins nothing yet; without a source it has an address of its own."""
        self.target = target
        self._source = source or next(_ADDRESSES)
        self._clients = ExitStack()
        self._stop = threading.Event()
        # That the attack has sent all it wants to at least once.
        self.struck = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(attack,), daemon=True)

    def _run(self, attack: Attack) -> None:
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
        """A connection that stays open for the attack, with a timeout of a second."""
        client = connect(self.target.address, source=self._source, opening=opening)
        client.settimeout(1)
        return self._clients.enter_context(client)

    def pause(self, seconds: float | None = None) -> None:
        self.struck.set()
        self._stop.wait(seconds)


@dataclass(frozen=True, slots=True)
class Footprint:
    """A process's anonymous memory in bytes, and its open files and threads."""

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
        return (
            self.memory - before.memory < _MOST_MEMORY
            and self.files - before.files <= _MOST_FILES
            and self.threads - before.threads <= _MOST_THREADS
        )


# A stopped server answers none of these; a slow one all in far less time.
_CALLS, _CALL_SECONDS = 30, 60.0
_PAUSE_SECONDS = 0.002


class HonestClient:
    """Two threads: one reuses its connection, the other opens one for each call."""

    def __init__(self, target: Target, expected: bytes) -> None:
        self._target, self._expected = target, expected
        self._stop = threading.Event()
        self.right = {"kept": 0, "new": 0}
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(kind,), daemon=True) for kind in self.right
        ]

    def __enter__(self) -> "HonestClient":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def answered(self, more: int) -> None:
        """Waits until each thread has had more right answers, and no failure."""
        wanted = {kind: count + more for kind, count in self.right.items()}
        until(
            lambda: self.failures or all(self.right[k] >= wanted[k] for k in wanted),
            "the honest client is answered",
            4 * _CALL_SECONDS,
        )
        assert not self.failures, self.failures[:5]

    def _run(self, kind: str) -> None:
        with grpc_channel(self._target) as kept:
            while not self._stop.wait(_PAUSE_SECONDS):
                try:
                    if kind == "kept":
                        answer = call(kept, self._target)
                    else:
                        with grpc_channel(self._target) as channel:
                            answer = call(channel, self._target)
                except grpc.RpcError as error:
                    self.failures.append(f"{kind}: {error.code()}: {error.details()}")
                    continue
                if answer == self._expected:
                    self.right[kind] += 1
                else:
                    self.failures.append(f"{kind}: a wrong answer")


def grpc_channel(target: Target) -> grpc.Channel:
    """A channel with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if target.credentials is not None:
        return grpc.secure_channel(target.address, target.credentials, options)
    return grpc.insecure_channel(target.address, options=options)


def call(channel: grpc.Channel, target: Target) -> bytes:
    ask = channel.unary_unary(target.path.decode())
    answer: bytes = ask(target.message, timeout=_CALL_SECONDS)
    return answer


@contextmanager
def beside_an_honest_client(served: Served) -> Iterator[HonestClient]:
    """An honest client that has no failure in all that time; the server then is as before."""
    with HonestClient(served.target, served.answer) as honest:
        honest.answered(_CALLS)
        before = Footprint.of(served.pid)
        yield honest
        honest.answered(_CALLS)
    now = [before]

    def is_back() -> bool:
        now[0] = Footprint.of(served.pid)
        return now[0].is_about(before)

    until(is_back, f"{before} again, not {now}")


def withstand(served: Served, *attacks: Attack) -> None:
    """Attacks a server, by one client for each attack, beside an honest one."""
    with beside_an_honest_client(served) as honest, ExitStack() as stack:
        attackers = [stack.enter_context(Attacker(served.target, attack)) for attack in attacks]
        for attacker in attackers:
            until(attacker.struck.is_set, "the attack has been made", 120.0)
        honest.answered(_CALLS)
