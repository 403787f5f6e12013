"""Unix sockets of a server, which its first process creates and removes."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from serving.config.server_config import ServerConfig
from serving.host.unix_socket import UnixSocket


@dataclass(frozen=True, slots=True)
class UnixSockets:
    """The configured sockets."""

    grpc: UnixSocket | None
    http: UnixSocket | None
    admin: UnixSocket | None

    def close_grpc(self) -> None:
        """Stop listening for gRPC in this process; the creating process removes the files."""
        for one in (self.grpc, self.admin):
            if one is not None:
                one.close()

    def close(self) -> None:
        """Stop listening on all sockets, likewise."""
        self.close_grpc()
        if self.http is not None:
            self.http.close()

    def http_listeners(self) -> list[socket.socket]:
        """Listening sockets for HTTP, taken from this process's."""
        return [] if self.http is None else [self.http.take()]


@contextmanager
def open_sockets(config: ServerConfig) -> Iterator[UnixSockets]:
    """Listen on the configured sockets until the end of the context; InputError if impossible."""
    with ExitStack() as stack:
        paths = (config.unix_socket, config.http_unix_socket, config.admin_socket)
        yield UnixSockets(
            *(
                None if path is None else stack.enter_context(closing(UnixSocket(path)))
                for path in paths
            )
        )
