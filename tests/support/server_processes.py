"""Processes of a running server, from the kernel."""

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.servers import RunningServer
from tests.support.waiting import until

LISTEN = "0A"


def free_port() -> int:
    """A free port, outside the range from which the kernel picks ports."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        # Each process of the tests draws another one, whatever their seeds are.
        port = lowest // 2 + secrets.randbelow(lowest - lowest // 2)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def children_of(parent: int) -> list[int]:
    return [pid for pid, state, above in _processes() if above == parent and state != "Z"]


def is_alive(pid: int) -> bool:
    return any(pid == other and state != "Z" for other, state, _ in _processes())


def _processes() -> Iterator[tuple[int, str, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        yield int(folder.name), state, int(parent)


def listeners_among(pids: list[int], port: int) -> list[int]:
    # gRPC listens on an IPv4 address by an IPv6 socket.
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    lines = [line for table in tables for line in table.read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    inodes = {
        f"socket:[{row[9]}]"
        for row in rows
        if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port
    }
    return [pid for pid in pids if inodes & _open_files(pid)]


def _open_files(pid: int) -> set[str]:
    files = set()
    with suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it has closed this one; others may be looked for
                files.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return files


def port_of(url: str) -> int:
    return int(url.removesuffix("/metrics").rpartition(":")[2])


def workers_of(server: RunningServer) -> list[int]:
    return listeners_among(children_of(server.process.pid), port_of(server.grpc_url))


def standby_of(server: RunningServer) -> int:
    """The process that answers the pages."""
    port = port_of(server.metrics_url)

    def answering() -> set[int]:
        pages = listeners_among(children_of(server.process.pid), port)
        return {*pages} - {*workers_of(server)}

    return _only(answering, "one process answers the pages")


def follower_of(server: RunningServer) -> int:
    """The child that answers neither RPCs nor pages."""

    def others() -> set[int]:
        return {*children_of(server.process.pid)} - {*workers_of(server), standby_of(server)}

    return _only(others, "one process follows the repository")


def _only(find: Callable[[], set[int]], what: str) -> int:
    found: set[int] = set()

    def is_found() -> bool:
        # The kernel's list of sockets may lack one while others come and go.
        found.clear()
        found.update(find())
        return len(found) == 1

    until(is_found, what)
    return found.pop()


def resident_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
