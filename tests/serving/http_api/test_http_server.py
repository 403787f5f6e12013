import http.client
import socket
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.control.server_state import ServerState
from serving.http_api.http_server import HttpServer, listen
from tests.serving.http_api.http_servers import serving_http


@pytest.fixture
def state() -> ServerState:
    return ServerState(2)


@pytest.fixture
def pages(state: ServerState) -> Iterator[HttpServer]:
    with serving_http(state=state) as pages:
        yield pages


def ask(pages: HttpServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", pages.server_port, timeout=10)
    with closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()


# Of Linux's struct tcp_info: after 8 bytes, 24 words of 4, 4 of 8, and 2 more of 4.
_DATA_SEGMENTS_IN = 152


def test_an_answer_comes_in_one_segment(pages: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", pages.server_port), 10) as client:
        client.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
        came = b""
        while part := client.recv(65536):
            came += part
        told = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGMENTS_IN + 4)
    assert came.startswith(b"HTTP/1.1 ") and not came.endswith(b"\r\n\r\n")
    assert int.from_bytes(told[_DATA_SEGMENTS_IN:], sys.byteorder) == 1


def test_no_answer_waits_for_the_acknowledgement_of_one_before() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with (
        listener,
        socket.create_connection(listener.getsockname()) as _,
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_metrics_page_is_readable_by_prometheus(pages: HttpServer) -> None:
    status, kind, text = ask(pages, "/metrics")
    assert status == 200 and kind.startswith("text/plain")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"sharded_infer_requests_in_flight", "sharded_infer_workers"} <= names
    assert ask(pages, "/")[0] == 200


def test_ready_says_loading_then_ready_then_draining_and_live_is_live(
    pages: HttpServer, state: ServerState
) -> None:
    assert ask(pages, "/ready")[::2] == (503, "loading\n")
    assert ask(pages, "/live")[::2] == (200, "live\n")
    state.set_serving(0, True)
    # The other has never been ready.
    assert ask(pages, "/ready")[::2] == (503, "loading\n")
    state.set_serving(1, True)
    assert ask(pages, "/ready")[::2] == (200, "ready\n")
    state.set_serving(0, False)
    assert ask(pages, "/ready")[::2] == (200, "ready\n")
    state.set_serving(1, False)
    assert ask(pages, "/ready")[0] == 503
    state.set_serving(1, True)
    assert ask(pages, "/ready")[::2] == (200, "ready\n")
    state.drain()
    assert ask(pages, "/ready")[::2] == (503, "draining\n")
    assert ask(pages, "/live")[::2] == (200, "live\n")


def test_an_unknown_page_is_404_and_names_those_there_are(pages: HttpServer) -> None:
    status, kind, text = ask(pages, "/metrics/more")
    assert status == 404 and kind.startswith("text/plain")
    assert all(known in text for known in ("/metrics", "/ready", "/live"))
