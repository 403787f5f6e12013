"""The compiled transport without an application that answers."""

from collections.abc import Iterator
from contextlib import contextmanager

from serving.abi.transport import AccessBit
from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.settings import limits_of
from serving.host.listeners import listen_on
from serving.transport.http2_server import Http2Server
from serving.transport.limits import Method


@contextmanager
def silent_server(path: str) -> Iterator[tuple[Http2Server, str]]:
    method = Method(path, access=AccessBit.PREDICT, with_headers=False)
    listeners = listen_on("127.0.0.1", 0)
    address = f"127.0.0.1:{listeners[0].getsockname()[1]}"
    server = Http2Server(listeners, [method], limits_of(ServerConfig("")), tls=None)
    try:
        yield server, address
    finally:
        server.stop()
