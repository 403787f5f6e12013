"""Shard hosts and fronts that are killed and restarted at the same address."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.marked_rows import HOSTS
from tests.support.server_processes import children_of, free_port
from tests.support.servers import RunningServer, running_server
from tests.support.shard_host_processes import ShardHostProcess, running_shard_host

Running = RunningServer | ShardHostProcess
# Starts a process and waits until it is ready, with a file for its error stream.
Start = Callable[[Path], AbstractContextManager[Running]]


class Replaceable:
    """A process that can be restarted: "front", or "host" and its number."""

    def __init__(self, role: str, log: Path, start: Start) -> None:
        """Start the process and wait until it is ready; each life has a numbered log."""
        self.role, self._log, self._make, self._lives = role, log, start, 0
        self._stack = ExitStack()
        self.start()

    def start(self) -> None:
        self._stack.close()
        log = self._log.with_suffix(f".{self._lives}")
        self._lives += 1
        self.running = self._stack.enter_context(self._make(log))
        self.is_ready = True

    def kill(self) -> None:
        self.is_ready = False
        self.running.process.kill()
        self.running.process.wait()

    def kill_all(self) -> None:
        children = list(map(os.pidfd_open, children_of(self.running.process.pid)))
        self.kill()
        for child in children:
            # Without its parent it may have ended.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
        for child in children:
            # Until the last thread has ended, it holds its port.
            select.select([child], [], [])
            os.close(child)

    def close(self) -> None:
        self._stack.close()


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two replicas of everything: by the host's number, and fronts with their addresses."""

    hosts: list[list[Replaceable]]
    fronts: list[Replaceable]
    addresses: list[str]

    def all(self) -> list[list[Replaceable]]:
        return [*self.hosts, self.fronts]


@contextmanager
def running_pairs(
    repository: Path, folder: Path, *options: object, exit_code: int | None
) -> Iterator[Pairs]:
    """Two replicas of each host and two fronts; None as exit code for a test that kills them."""
    ports = [[free_port(), free_port()] for _ in range(HOSTS)]
    lines = [f"{n} = {[f'127.0.0.1:{port}' for port in pair]}" for n, pair in enumerate(ports)]
    named = folder / "hosts.toml"
    named.write_text("\n".join(("timeout_ms = 5000", "[hosts]", *lines, "")))

    def host(number: int, port: int) -> Replaceable:
        def start(log: Path) -> AbstractContextManager[Running]:
            mine = ("--port", port, *options)
            return running_shard_host(repository, number, log, *mine, exit_code=exit_code)

        return Replaceable(f"host {number}", folder / f"host-{port}", start)

    def front(port: int) -> Replaceable:
        def start(log: Path) -> AbstractContextManager[Running]:
            mine = ("--port", port, "--shard-hosts", named, *options)
            return running_server(repository, log, *mine, exit_code=exit_code)

        return Replaceable("front", folder / f"front-{port}", start)

    with ExitStack() as stack:

        def ended(one: Replaceable) -> Replaceable:
            stack.callback(one.close)
            return one

        hosts = [[ended(host(number, port)) for port in pair] for number, pair in enumerate(ports)]
        front_ports = [free_port(), free_port()]
        fronts = [ended(front(port)) for port in front_ports]
        yield Pairs(hosts, fronts, [f"127.0.0.1:{port}" for port in front_ports])
