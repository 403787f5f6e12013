"""Connections: slow, silent and too many clients are dropped, and nobody waits for them."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from serving.metrics import Metrics
from serving.pages import Pages, listen
from serving.rest.connection import HttpLimits
from serving.server_state import ServerState

LIMITS = HttpLimits(
    max_connections=4,
    header_bytes=2000,
    header_seconds=0.5,
    body_bytes=1000,
    body_seconds=0.5,
    idle_seconds=0.5,
)


class NoModels:
    """An API whose paths are not asked for."""

    def refuse(self, method: str, path: str) -> None:
        return None

    def body_bytes(self, method: str, path: str) -> int:
        return LIMITS.body_bytes

    async def answer(self, request: object, gone: object) -> object:
        raise NotImplementedError


def serving_pages(limits: HttpLimits) -> closing[Pages]:
    listener = listen("127.0.0.1", 0)
    api = NoModels()
    return closing(
        Pages(listener, Metrics(), ServerState(1), api=api, limits=limits)  # type: ignore[arg-type]
    )


@pytest.fixture
def pages() -> Iterator[Pages]:
    with serving_pages(LIMITS) as pages:
        yield pages


def connect(pages: Pages) -> socket.socket:
    return socket.create_connection(("127.0.0.1", pages.server_port), 10)


def until_closed(client: socket.socket) -> tuple[bytes, float]:
    """What comes until the server closes, and how long that took."""
    began = time.monotonic()
    came = b""
    try:
        while part := client.recv(65536):
            came += part
    except ConnectionResetError:
        pass
    return came, time.monotonic() - began


@pytest.mark.parametrize("sent", [b"", b"GET /live HT", b"GET /live HTTP/1.1\r\nHost: x\r\nX: "])
def test_a_client_whose_headers_do_not_come_is_dropped(pages: Pages, sent: bytes) -> None:
    with connect(pages) as client:
        client.sendall(sent)
        came, seconds = until_closed(client)
    assert came == b"" and 0.3 < seconds < 3


def _drip(client: socket.socket, sent: bytes) -> None:
    for byte in sent:
        client.sendall(bytes([byte]))
        time.sleep(0.02)


def test_headers_that_come_byte_by_byte_have_no_more_time(pages: Pages) -> None:
    with connect(pages) as client:
        began = time.monotonic()
        with pytest.raises(ConnectionError):
            _drip(client, b"GET /live HTTP/1.1\r\nX: " + b"a" * 1000)
    assert time.monotonic() - began < 4


def test_an_idle_connection_is_closed_and_so_is_a_slow_second_request(pages: Pages) -> None:
    for more in (b"", b"GET /li"):
        with connect(pages) as client:
            client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            time.sleep(0.1)
            client.sendall(more)
            came, seconds = until_closed(client)
        assert came.count(b"HTTP/1.1 200") == 1 and seconds < 3


def test_a_body_that_does_not_come_is_refused_with_408(pages: Pages) -> None:
    with connect(pages) as client:
        client.sendall(b"POST /v2/logging HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        came, seconds = until_closed(client)
    assert came.startswith(b"HTTP/1.1 408") and 0.3 < seconds < 3


def test_a_body_or_headers_too_large_are_refused(pages: Pages) -> None:
    head = b"POST /v2/logging HTTP/1.1\r\nHost: x\r\n"
    for rest, status in (
        (b"Content-Length: 1001\r\n\r\n", b"429"),
        (b"X: " + b"a" * 3000 + b"\r\n\r\n", b"431"),
        (b"X: " + b"a" * 3000, b"400"),
    ):
        with connect(pages) as client:
            client.sendall(head + rest)
            came, _ = until_closed(client)
        assert came.split()[1] == status


def _is_live(client: socket.socket) -> bool:
    client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    came = b""
    while not came.endswith(b"live\n"):
        part = client.recv(65536)
        if not part:
            return False
        came += part
    return b" 200 " in came


def test_a_connection_too_many_is_closed_and_those_there_are_answered() -> None:
    limits = replace(LIMITS, header_seconds=30, idle_seconds=30)
    with serving_pages(limits) as pages, ExitStack() as stack:
        held = [stack.enter_context(connect(pages)) for _ in range(limits.max_connections)]
        assert _is_live(held[-1])
        with connect(pages) as another:
            assert until_closed(another)[0] == b""
        assert _is_live(held[-1])


def test_pages_that_accept_no_more_leave_the_socket_to_others() -> None:
    with closing(listen("127.0.0.1", 0)) as listener:
        pages = Pages(listener.dup(), Metrics(), ServerState(1))
        pages.stop_accepting()
        with (
            connect(pages) as client,
            closing(Pages(listener.dup(), Metrics(), ServerState(1), limits=LIMITS)),
        ):
            client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert until_closed(client)[0].endswith(b"live\n")
        pages.close()
