"""A server that answers every predict call with the same bytes, to measure a transport alone.

    python -m serving.bench.peers.echo_server TRANSPORT RESPONSE_BYTES THREADS

It prints its port, and ends with its standard input.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.settings import limits_of
from serving.grpc_api.handlers import INFER_METHOD, INFERENCE_SERVICE
from serving.host.listeners import listen_on
from serving.transport.events import EventKind, EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.limits import AccessBit, Method

_LARGEST_MESSAGE = 64 * 2**20
_PATIENCE_MS = 1000
_OPEN_CALLS = 2**20


def main() -> None:
    """Serves until standard input ends."""
    transport, size, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    response = bytes(size)
    start = {"grpcio": _start_grpcio, "native": _start_native}[transport]
    sys.stdout.write(f"{start(response, threads)}\n")
    sys.stdout.flush()
    sys.stdin.read()


def _start_grpcio(response: bytes, threads: int) -> int:
    server = grpc.server(
        ThreadPoolExecutor(threads),
        options=[("grpc.max_receive_message_length", _LARGEST_MESSAGE)],
    )
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(lambda *_: response)
    }
    generic = grpc.method_handlers_generic_handler(INFERENCE_SERVICE, handlers)
    server.add_generic_rpc_handlers((generic,))
    server.add_registered_method_handlers(INFERENCE_SERVICE, handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _keep(server)
    return port


def _start_native(response: bytes, threads: int) -> int:
    method = Method(INFER_METHOD, is_stream=False, access=AccessBit.OPEN, with_headers=False)
    limits = limits_of(ServerConfig("", max_concurrent_requests=_OPEN_CALLS))
    listeners = listen_on("127.0.0.1", 0)
    port: int = listeners[0].getsockname()[1]
    server = Http2Server(listeners, [method], limits, tls=None)
    _keep(server)

    def serve() -> None:
        reader = EventReader(server.fetch)
        while (events := reader.fetch(_PATIENCE_MS)) is not None:
            for event in events:
                if event.kind is EventKind.CALL:
                    server.respond(event.call, response)

    for _ in range(threads):
        threading.Thread(target=serve, daemon=True).start()
    return port


_KEPT: list[object] = []


def _keep(server: object) -> None:
    # A grpcio server that nobody holds stops.
    _KEPT.append(server)


if __name__ == "__main__":
    main()
