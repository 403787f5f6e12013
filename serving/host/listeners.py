"""TCP sockets of a server: one for each address of a host, all on one port."""

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sharded_infer.errors import InputError

BACKLOG = 4096
# A name may have addresses that this machine lacks, such as ::1 without IPv6.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
# A free port of one address may be taken on another one.
_FREE_PORT_TRIES = 16
_Address = tuple[Any, ...]


def listen_on(host: str, port: int, *, share_port: bool = False) -> list[socket.socket]:
    """Non-blocking sockets that listen on every address of a host; port 0 picks a free one.

    With `share_port` other such processes may listen there too. Raises InputError if the host has
    no address here, or the port is not available.
    """

    def listening(family: int, address: _Address) -> socket.socket:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(share_port))
            # Accepted sockets inherit it. asyncio sets it only on sockets with TCP's protocol
            # number, which `socket.socket` leaves at 0. Answers would wait 40 ms for
            # acknowledgements.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _bind(made, address)
            made.listen(BACKLOG)
            made.setblocking(False)
        except OSError:
            made.close()
            raise
        return made

    return _on_every_address(host, port, listening)


@dataclass(frozen=True, slots=True)
class HeldPort:
    """A port that is reserved for workers, on every address of a host; no socket listens."""

    port: int
    sockets: tuple[socket.socket, ...]

    def close(self) -> None:
        """Release the port."""
        for one in self.sockets:
            one.close()


def hold_port(host: str, port: int) -> HeldPort:
    """Reserve a port for the workers; raise InputError if another process uses it."""
    sockets = _on_every_address(host, port, _holding)
    return HeldPort(sockets[0].getsockname()[1], tuple(sockets))


def _holding(family: int, address: _Address) -> socket.socket:
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Another server's workers would let us in with SO_REUSEPORT, and share its clients.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(probe, address)
            address = probe.getsockname()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            _bind(held, address)
        except OSError:
            # The port remembers connections that an earlier server closed, for a minute. If
            # SO_REUSEADDR stayed on, another server's probe would pass while our workers start.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _bind(held, address)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        held.close()
        raise
    return held


def _bind(made: socket.socket, address: _Address) -> None:
    if made.family == socket.AF_INET6:
        # "::" is every address, including IPv4's.
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind(address)


def _on_every_address(
    host: str, port: int, make: Callable[[int, _Address], socket.socket]
) -> list[socket.socket]:
    try:
        # gRPC writes IPv6 addresses in brackets.
        found = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys((int(family), address) for family, *_, address in found))
        for _ in range(_FREE_PORT_TRIES if port == 0 else 0):
            try:
                return _on_one_port(port, addresses, make)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        return _on_one_port(port, addresses, make)
    except OSError as error:
        raise InputError(f"port {host}:{port} cannot be had: {error.strerror}") from error


def _on_one_port(
    port: int, addresses: list[tuple[int, _Address]], make: Callable[[int, _Address], socket.socket]
) -> list[socket.socket]:
    made: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, (name, _, *scope) in addresses:
            try:
                made.append(make(family, (name, port, *scope)))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
            else:
                port = made[0].getsockname()[1]
        if absent is not None and not made:
            raise absent
    except OSError:
        for one in made:
            one.close()
        raise
    return made
