"""The port that a server's workers share."""

import socket

from sharded_infer.errors import InputError


def hold_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port for the workers, and never listens itself.

    Raises:
        InputError: another process has the port.
    """
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Another server's workers would let us in with SO_REUSEPORT, and share its clients.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            address = probe.getsockname()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind(address)
        except OSError:
            # The port remembers connections that a server before us has closed, for a minute. With
            # SO_REUSEADDR left on, another server's probe would pass while our workers start.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError as error:
        held.close()
        raise InputError(f"port {host}:{port} cannot be had: {error.strerror}") from error
    return held
