"""A server that answers every predict call with the same bytes, to measure a transport alone.

    python -m benchmarks.servers.echo_server TRANSPORT RESPONSE_BYTES THREADS

It prints its port, and ends with its standard input.
"""

import os
import sys
import threading
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from subprocess import PIPE, Popen

import grpc

from serving.bench.load.target import Target
from serving.bench.servers.server_under_test import ServerUnderTest
from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.settings import limits_of
from serving.grpc_api.handlers import INFER_METHOD, INFERENCE_SERVICE
from serving.host.listeners import listen_on
from serving.transport.events import EventKind, EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.limits import AccessBit, Method
from sharded_infer.errors import ShardedInferError

_LARGEST_MESSAGE = 64 * 2**20
_PATIENCE_MS = 1000
_OPEN_CALLS = 2**20


@contextmanager
def echoing(
    transport: str, response_bytes: int, threads: int, cpus: Set[int] | None
) -> Iterator[ServerUnderTest]:
    """Starts a bare echo server, and stops it at the end."""
    command = [sys.executable, "-m", "benchmarks.servers.echo_server"]
    command += [transport, str(response_bytes), str(threads)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True) as process:  # noqa: S603 - our own command
        if cpus is not None:
            os.sched_setaffinity(process.pid, cpus)
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line:
            raise ShardedInferError(f"the {transport} echo server did not start")
        try:
            yield ServerUnderTest(Target("127.0.0.1", int(line)), None, process.pid)
        finally:
            process.terminate()


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
