import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from serving.http_api.exchange import HttpAnswer, HttpCall
from serving.http_api.http_server import HttpServer, listen
from serving.http_api.routes import Route
from serving.metrics.server_metrics import ServerMetrics
from serving.security.tls import TlsFiles
from tests.serving.http_api.http_servers import LIMITS as DEFAULTS
from tests.serving.http_api.http_servers import Answering, serving_http
from tests.support.tls import issue_files
from tests.support.waiting import until

LIMITS = replace(
    DEFAULTS,
    connections=4,
    header_bytes=2000,
    handshake_seconds=1.5,
    message_bytes=1000,
    message_seconds=1.5,
    stalled_seconds=1.5,
    idle_seconds=0.5,
)
HEAD = b" HTTP/1.1\r\nHost: [::1]\r\n"
LIVE = b"GET /live" + HEAD + b"\r\n"


class Held(Answering):
    def __init__(self) -> None:
        self.asked = threading.Event()
        self.calls: list[HttpCall] = []

    def take(self, call: HttpCall, route: Route) -> None:
        self.calls.append(call)
        self.asked.set()


class Large(Answering):
    def take(self, call: HttpCall, route: Route) -> None:
        call.reply(HttpAnswer(200, bytes(30 * 2**20)))


@pytest.fixture
def pages() -> Iterator[HttpServer]:
    with serving_http(LIMITS, Answering()) as pages:
        yield pages


def connect(pages: HttpServer, source: str = "127.0.0.1") -> socket.socket:
    address = ("127.0.0.1", pages.server_port)
    return socket.create_connection(address, 10, source_address=(source, 0))


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
    with serving_http(api=api) as pages:
        with connect(pages) as client:
            head = f"POST /v2/logging HTTP/1.1\r\nHost: [::1]\r\nContent-Length: {size}\r\n\r\n"
            client.sendall(head.encode() + bytes(size))
            assert api.asked.wait(10)
            assert not api.calls[0].is_lost
        until(lambda: api.calls[0].is_lost, "it is told")


def test_pages_that_accept_no_more_leave_the_socket_to_others() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener, serving_http(listeners=[listener.dup()]) as pages, connect(pages) as kept:
        assert _is_live(kept)
        pages.stop_accepting()
        with (
            connect(pages) as client,
            serving_http(LIMITS, listeners=[listener.dup()]),
        ):
            client.sendall(LIVE)
            assert until_closed(client).endswith(b"live\n")


def test_a_client_that_asks_whether_to_go_on_is_told_so_once() -> None:
    head = (
        b"POST /v2/logging HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\nExpect: 100-continue\r\n"
    )
    with serving_http(api=Answering()) as pages, connect(pages) as client:
        client.sendall(head + b"Connection: close\r\n\r\n")
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"words")
        came = until_closed(client)
        assert came.startswith(b"HTTP/1.1 200") and came.endswith(b"words")


def test_handshakes_have_the_time_of_headers_and_give_way_too(tmp_path: Path) -> None:
    files = issue_files(tmp_path)
    context = ssl.create_default_context(cafile=str(files.ca))
    with (
        serving_http(
            LIMITS, Answering(), tls=TlsFiles(files.certificate, files.key, None)
        ) as pages,
        ExitStack() as stack,
    ):
        with connect(pages) as silent:
            assert until_closed(silent) == b""
        held = [stack.enter_context(connect(pages)) for _ in range(3 * LIMITS.connections)]
        with context.wrap_socket(connect(pages), server_hostname="127.0.0.1") as client:
            assert _is_live(client)
            client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
            came = until_closed(client)
            assert came.startswith(b"HTTP/1.1 200")
        assert until_closed(held[0]) == b""


def dropped(metrics: ServerMetrics, reason: str) -> float:
    name, labels = "sharded_infer_http_dropped_total", {"reason": reason}
    return metrics.registry.get_sample_value(name, labels) or 0.0


def test_of_an_address_with_too_many_the_one_that_waits_longest_goes() -> None:
    metrics, api = ServerMetrics(), Held()
    limits = replace(DEFAULTS, connections=64, address_connections=3)
    with serving_http(limits, api, metrics=metrics) as pages, ExitStack() as stack:
        first, second, third = (stack.enter_context(connect(pages)) for _ in range(3))
        other = stack.enter_context(connect(pages, "127.66.3.1"))
        assert all(map(_is_live, (first, second, third, other)))
        # The first one has waited for the shortest time, and the second one waits for the server.
        assert _is_live(first)
        second.sendall(b"POST /v2/logging" + HEAD + b"Content-Length: 1\r\n\r\n{")
        assert api.asked.wait(10)
        fourth = stack.enter_context(connect(pages))
        assert until_closed(third) == b""
        assert all(map(_is_live, (first, other, fourth)))
        until(lambda: dropped(metrics, "address") == 1, "it is counted")


def test_the_address_with_the_most_connections_makes_room() -> None:
    metrics = ServerMetrics()
    with serving_http(LIMITS, Answering(), metrics=metrics) as pages, ExitStack() as stack:
        other = stack.enter_context(connect(pages, "127.66.3.1"))
        many = [stack.enter_context(connect(pages, "127.66.3.2")) for _ in range(3)]
        another = stack.enter_context(connect(pages, "127.66.3.3"))
        assert until_closed(many[0]) == b""
        assert all(map(_is_live, (other, another)))
        until(lambda: dropped(metrics, "connections") == 1, "it is counted")


def test_where_all_are_busy_further_connections_may_ask_the_probes_alone() -> None:
    api = Held()
    with serving_http(replace(DEFAULTS, connections=2), api) as pages, ExitStack() as stack:
        for _ in range(2):
            busy = stack.enter_context(connect(pages))
            api.asked.clear()
            busy.sendall(b"POST /v2/logging" + HEAD + b"Content-Length: 1\r\n\r\n{")
            assert api.asked.wait(10)
        # More than there are places for: who is silent makes room.
        silent = [stack.enter_context(connect(pages)) for _ in range(100)]
        for path, status in ((b"/live", b"200"), (b"/v2", b"503"), (b"/metrics", b"503")):
            with connect(pages) as client:
                client.sendall(b"GET " + path + HEAD + b"\r\n")
                came = until_closed(client)
                assert came.split()[1] == status, came
        assert until_closed(silent[0]) == b""


def test_what_anyone_may_ask_holds_no_place_against_others() -> None:
    api = Held()
    with serving_http(replace(DEFAULTS, connections=2), api) as pages, ExitStack() as stack:
        asking = []
        for _ in range(2):
            asking.append(stack.enter_context(connect(pages)))
            api.asked.clear()
            asking[-1].sendall(b"GET /v2/health/live" + HEAD + b"\r\n")
            assert api.asked.wait(10)
        other = stack.enter_context(connect(pages))
        assert until_closed(asking[0]) == b""
        until(lambda: api.calls[0].is_lost, "it is told")
        api.asked.clear()
        other.sendall(b"GET /v2" + HEAD + b"\r\n")
        assert api.asked.wait(10)


def test_an_answer_that_is_not_read_ends_its_connection() -> None:
    metrics = ServerMetrics()
    with serving_http(LIMITS, Large(), metrics=metrics) as pages, connect(pages) as client:
        client.sendall(b"GET /v2" + HEAD + b"\r\n")
        until(lambda: dropped(metrics, "unread") == 1, "it is dropped")
        assert len(until_closed(client)) < 30 * 2**20


def test_a_server_that_closes_answers_what_is_in_progress_and_ends_what_is_not() -> None:
    api = Held()
    with ExitStack() as stack:
        pages = stack.enter_context(serving_http(api=api))
        idle, busy = (stack.enter_context(connect(pages)) for _ in range(2))
        assert _is_live(idle)
        busy.sendall((b"GET /v2" + HEAD + b"\r\n") * 2)
        assert api.asked.wait(10)
        closing = threading.Thread(target=pages.close)
        closing.start()
        assert until_closed(idle) == b""
        api.calls[0].reply(HttpAnswer(200, b"late"))
        came = until_closed(busy)
        assert came.endswith(b"late") and came.count(b"HTTP/1.1") == 1
        assert b"connection: close" in came
        closing.join()


def test_where_memory_is_short_a_body_that_takes_long_makes_room() -> None:
    metrics, head = ServerMetrics(), b"POST /v2/models/m/infer" + HEAD
    limits = replace(DEFAULTS, message_bytes=2**20, held_bytes=2**21)
    with serving_http(limits, Answering(), metrics=metrics) as pages, ExitStack() as stack:
        slow = stack.enter_context(connect(pages))
        slow.sendall(head + b"Content-Length: 700000\r\n\r\n" + bytes(600_000))

        def is_answered() -> bool:
            # From another address, which may have as much as is left.
            with connect(pages, "127.66.3.1") as client:
                client.sendall(head + b"Content-Length: 900000\r\n\r\n" + bytes(900_000))
                came = client.recv(200)
            assert came.split()[1] in {b"200", b"429"}
            assert b" 200 " in came or b"Retry-After: 1\r\n" in came
            return b" 200 " in came

        until(lambda: not is_answered(), "the slow one holds memory", 10.0)
        until(is_answered, "the slow one is dropped", 60.0)
        assert until_closed(slow) == b""
        until(lambda: dropped(metrics, "body_late") == 1, "it is counted")
