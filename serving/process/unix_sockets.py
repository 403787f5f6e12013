"""The Unix sockets of a server, which its first process makes and removes."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from serving.config.server_config import ServerConfig
from serving.host.unix_socket import UnixSocket


@dataclass(frozen=True, slots=True)
class UnixSockets:
    """The configured sockets; None: that one is not."""

    grpc: UnixSocket | None
    http: UnixSocket | None
    admin: UnixSocket | None

    def close_grpc(self) -> None:
        """Listens for gRPC no more in this process; its maker removes the files."""
        for one in (self.grpc, self.admin):
            if one is not None:
                one.close()

    def close(self) -> None:
        """The same for all."""
        self.close_grpc()
        if self.http is not None:
            self.http.close()

    def http_listeners(self) -> list[socket.socket]:
        """Listening sockets for HTTP, taken from this process's."""
        return [] if self.http is None else [self.http.take()]


@contextmanager
def open_sockets(config: ServerConfig) -> Iterator[UnixSockets]:
    """Listens on the configured sockets; removes their files at the end.

    Raises:
        InputError: a socket cannot be had.
    """
    with ExitStack() as stack:
        paths = (config.unix_socket, config.http_unix_socket, config.admin_socket)
        yield UnixSockets(
            *(
                None if path is None else stack.enter_context(closing(UnixSocket(path)))
                for path in paths
            )
        )
