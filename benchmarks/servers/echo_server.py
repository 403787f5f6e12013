"""A server that answers every predict call with the same bytes, to measure only a transport.

    python -m benchmarks.servers.echo_server RESPONSE_BYTES

It prints its port, and ends with its standard input.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

from serving.abi.transport import AccessBit, EventKind
from serving.bench.load.process import split_cpus
from serving.bench.load.target import Target
from serving.bench.servers.server_under_test import ServerUnderTest
from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.settings import limits_of
from serving.grpc_api.handlers import INFER_METHOD
from serving.host.listeners import listen_on
from serving.transport.events import EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.limits import Method
from sharded_infer.errors import ShardedInferError

_PATIENCE_MS = 1000
_OPEN_CALLS = 2**20


@contextmanager
def echoing(response_bytes: int) -> Iterator[ServerUnderTest]:
    """Run a bare echo server on the servers' core in the context."""
    command = [sys.executable, "-m", "benchmarks.servers.echo_server", str(response_bytes)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True) as process:  # noqa: S603 - our own command
        os.sched_setaffinity(process.pid, split_cpus()[0])
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line:
            raise ShardedInferError("the echo server did not start")
        try:
            yield ServerUnderTest(Target("127.0.0.1", int(line)), None, process.pid)
        finally:
            process.terminate()


def main() -> None:
    """Serve until standard input ends."""
    response = bytes(int(sys.argv[1]))
    method = Method(INFER_METHOD, access=AccessBit.OPEN, with_headers=False)
    limits = limits_of(ServerConfig("", max_concurrent_requests=_OPEN_CALLS))
    listeners = listen_on("127.0.0.1", 0)
    port: int = listeners[0].getsockname()[1]
    server = Http2Server(listeners, [method], limits, tls=None)

    def serve() -> None:
        reader = EventReader(server.fetch)
        while (events := reader.fetch(_PATIENCE_MS)) is not None:
            for event in events:
                if event.kind is EventKind.CALL:
                    server.respond(event.call, response)

    threading.Thread(target=serve, daemon=True).start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
