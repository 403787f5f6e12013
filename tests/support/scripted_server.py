"""A server that runs a test's script on each connection, in bytes."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.attacks.raw_http2 import END_HEADERS, END_STREAM, HEADERS, PREFACE, frame, header

# Takes the connection and its number, from 0.
Script = Callable[[socket.socket, int], None]
HEAD = header(b":status", b"200") + header(b"content-type", b"application/grpc")
_SECONDS = 60.0


class ScriptedServer:
    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(_SECONDS)
            thread = threading.Thread(target=self._serve, args=(connection, self.connections))
            self.connections += 1
            self._open.append(connection)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        # The client may leave first.
        with suppress(OSError), connection:
            self._script(connection, number)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@contextmanager
def scripted_server(script: Script) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script)
    try:
        yield server
    finally:
        server.close()


def read_preface(connection: socket.socket) -> None:
    """Read every client's first bytes; `frames` reads the rest."""
    got = b""
    while len(got) < len(PREFACE):
        part = connection.recv(len(PREFACE) - len(got))
        if not part:
            raise ConnectionError("the client has gone")
        got += part
    assert got == PREFACE


def read_on(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def trailers(stream: int, *pairs: tuple[bytes, bytes], head: bytes = b"") -> bytes:
    """The end of an answer; with a head it is all of it."""
    block = head + b"".join(header(name, value) for name, value in pairs)
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
