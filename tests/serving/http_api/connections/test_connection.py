import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from serving.control.server_state import ServerState
from serving.http_api.connections.connection_context import WhenLost
from serving.http_api.connections.limits import HttpLimits
from serving.http_api.exchange import HttpAnswer, HttpRequest
from serving.http_api.http_server import HttpServer, listen
from serving.metrics.server_metrics import ServerMetrics
from serving.security.tls import TlsFiles
from tests.support.tls import issue_files

LIMITS = HttpLimits(
    max_connections=4,
    header_bytes=2000,
    header_seconds=1.5,
    body_bytes=1000,
    body_seconds=1.5,
    idle_seconds=0.5,
)


class NoModels:
    def refuse(self, method: str, path: str) -> None:
        return None

    def body_bytes(self, method: str, path: str) -> int:
        return LIMITS.body_bytes

    async def answer(self, request: object, when_lost: object) -> object:
        raise NotImplementedError


class Reading(NoModels):
    def body_bytes(self, method: str, path: str) -> int:
        return 2**20

    async def answer(self, request: HttpRequest, when_lost: object) -> HttpAnswer:  # type: ignore[override]
        return HttpAnswer(200, request.body)


class Held(NoModels):
    def __init__(self) -> None:
        self.asked, self.left = threading.Event(), threading.Event()

    def body_bytes(self, method: str, path: str) -> int:
        return 2**20

    async def answer(self, request: object, when_lost: WhenLost) -> HttpAnswer:
        lost = asyncio.Event()
        when_lost(lost.set)
        self.asked.set()
        await lost.wait()
        self.left.set()
        return HttpAnswer(200)


def serving_http(
    limits: HttpLimits, api: NoModels | None = None, tls: TlsFiles | None = None
) -> closing[HttpServer]:
    listener = listen("127.0.0.1", 0)
    api = api or NoModels()
    return closing(
        HttpServer(listener, ServerMetrics(), ServerState(1), api=api, limits=limits, tls=tls)  # type: ignore[arg-type]
    )


@pytest.fixture
def pages() -> Iterator[HttpServer]:
    with serving_http(LIMITS) as pages:
        yield pages


def connect(pages: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", pages.server_port), 10)


def until_closed(client: socket.socket) -> bytes:
    """Bytes until the server closes, which it does within the socket's timeout."""
    came = b""
    with suppress(ConnectionResetError):
        while part := client.recv(65536):
            came += part
    return came


def test_clients_whose_headers_do_not_come_are_dropped(pages: HttpServer) -> None:
    with connect(pages) as silent, connect(pages) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nX: ")
        assert until_closed(silent) == until_closed(client) == b""


def test_headers_that_come_byte_by_byte_have_no_more_time(pages: HttpServer) -> None:
    with connect(pages) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nX: ")
        with suppress(ConnectionError):
            for _ in range(500):
                client.sendall(b"a")
                time.sleep(0.02)
            pytest.fail("the client is not dropped")


def test_an_idle_connection_is_closed_and_so_is_a_slow_second_request(pages: HttpServer) -> None:
    for more in (b"", b"GET /li"):
        with connect(pages) as client:
            client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = client.recv(65536)
            client.sendall(more)
            rest = until_closed(client)
        assert (answer + rest).count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"Content-Length: 10\r\n\r\n{", b"408"),
        (b"Content-Length: 1001\r\n\r\n", b"429"),
        (b"X: " + b"a" * 3000 + b"\r\n\r\n", b"431"),
        (b"X: " + b"a" * 3000, b"400"),
    ],
)
def test_bodies_that_do_not_come_and_what_is_too_large_are_refused(
    pages: HttpServer, rest: bytes, status: bytes
) -> None:
    with connect(pages) as client:
        client.sendall(b"POST /v2/logging HTTP/1.1\r\nHost: [::1]\r\n" + rest)
        assert until_closed(client).split()[1] == status


def _is_live(client: socket.socket) -> bool:
    client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    came = b""
    while not came.endswith(b"live\n"):
        part = client.recv(65536)
        if not part:
            return False
        came += part
    return b" 200 " in came


@pytest.mark.parametrize("size", [0, 300_000])
def test_who_answers_is_told_that_the_client_has_left(size: int) -> None:
    api = Held()
    with serving_http(HttpLimits(), api) as pages:
        with connect(pages) as client:
            head = f"POST /v2/logging HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {size}\r\n\r\n"
            client.sendall(head.encode() + bytes(size))
            assert api.asked.wait(10)
            assert not api.left.is_set()
        assert api.left.wait(10)


def test_pages_that_accept_no_more_leave_the_socket_to_others() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener:
        pages = HttpServer([listener.dup()], ServerMetrics(), ServerState(1))
        pages.stop_accepting()
        with (
            connect(pages) as client,
            closing(HttpServer([listener.dup()], ServerMetrics(), ServerState(1), limits=LIMITS)),
        ):
            client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert until_closed(client).endswith(b"live\n")
        pages.close()


def test_a_client_that_asks_whether_to_go_on_is_told_so_once() -> None:
    head = (
        b"POST /v2/logging HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\nExpect: 100-continue\r\n"
    )
    with serving_http(HttpLimits(), Reading()) as pages, connect(pages) as client:
        client.sendall(head + b"Connection: close\r\n\r\n")
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"words")
        came = until_closed(client)
        assert came.startswith(b"HTTP/1.1 200") and came.endswith(b"words")


def test_handshakes_have_the_time_of_headers_and_give_way_too(tmp_path: Path) -> None:
    files = issue_files(tmp_path)
    context = ssl.create_default_context(cafile=str(files.ca))
    with (
        serving_http(LIMITS, tls=TlsFiles(files.certificate, files.key, None)) as pages,
        ExitStack() as stack,
    ):
        with connect(pages) as silent:
            assert until_closed(silent) == b""
        held = [stack.enter_context(connect(pages)) for _ in range(3 * LIMITS.max_connections)]
        with context.wrap_socket(connect(pages), server_hostname="127.0.0.1") as client:
            assert _is_live(client)
            client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
            came = until_closed(client)
            assert came.startswith(b"HTTP/1.1 200")
        assert until_closed(held[0]) == b""
