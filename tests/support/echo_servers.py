"""Servers of one unary method that echoes its message."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc

from serving.abi.transport import AccessBit, EventKind
from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.settings import limits_of
from serving.host.listeners import listen_on
from serving.security.tls import TlsFiles
from serving.transport.events import Event, EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.limits import Limits, Method
from tests.support.tls import IssuedFiles

PATH = "/test.Service/Echo"
MESSAGE_BYTES = 16 * 2**20
LIMITS = replace(limits_of(ServerConfig("")), message_bytes=MESSAGE_BYTES, held_bytes=2**28)
Respond = Callable[[Http2Server, Event], None]


def echo(server: Http2Server, event: Event) -> None:
    server.respond(event.call, event.message)


@contextmanager
def compiled_echo(
    tls: IssuedFiles | None = None,
    *,
    limits: Limits = LIMITS,
    respond: Respond = echo,
    client_ca: Path | None = None,
    port: int = 0,
) -> Iterator[str]:
    listeners = listen_on("127.0.0.1", port)
    address = f"127.0.0.1:{listeners[0].getsockname()[1]}"
    files = None if tls is None else TlsFiles(tls.certificate, tls.key, client_ca)
    method = Method(PATH, access=AccessBit.OPEN, with_headers=True)
    server = Http2Server(listeners, [method], limits, tls=files)

    def serve() -> None:
        reader = EventReader(server.fetch)
        while (events := reader.fetch(100)) is not None:
            for event in events:
                if event.kind is EventKind.CALL:
                    respond(server, event)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield address
    finally:
        server.stop()
        thread.join()


class _Echo(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != PATH:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda message, _: message)


@contextmanager
def grpcio_echo(
    tls: IssuedFiles | None = None,
    *,
    options: Sequence[tuple[str, int]] = (),
    address: str = "127.0.0.1:0",
) -> Iterator[str]:
    sizes = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, options=[*sizes, *options])
        server.add_generic_rpc_handlers((_Echo(),))
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            pairs = [(tls.key.read_bytes(), tls.certificate.read_bytes())]
            port = server.add_secure_port(address, grpc.ssl_server_credentials(pairs))
        server.start()
        try:
            yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
