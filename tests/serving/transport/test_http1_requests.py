import fcntl
import select
import socket
import termios
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.abi.transport import AccessBit, EventKind
from serving.transport.events import EventReader, http_headers
from serving.transport.http2_server import Http2Server
from serving.transport.limits import HttpRoute
from tests.support.echo_servers import LIMITS

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
TEXT = st.text("\r\n0a;:", max_size=40).map(str.encode)


@dataclass(frozen=True)
class Sent:
    raw: bytes
    target: str
    body: bytes
    keep_alive: bool


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    target = draw(st.sampled_from(["/", "/live", "/a?b=c"]))
    before = draw(st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]))
    headers = b"Host: x\r\n" + draw(st.sampled_from([b"", UPGRADE, b"X: \xff \t\r\n"]))
    keep_alive = draw(st.booleans())
    if not keep_alive:
        headers = headers.replace(b"Upgrade,", b"close,") if UPGRADE in headers else headers
        headers += b"" if UPGRADE in headers or b"close" in headers else b"Connection: close\r\n"
    kind = draw(st.sampled_from(["none", "length", "chunks"]))
    method = "GET" if kind == "none" else "POST"
    pieces = [] if kind == "none" else draw(st.lists(TEXT.filter(bool), max_size=5))
    body = b"".join(pieces)
    if kind == "length":
        headers += b"Content-Length: %d\r\n" % len(body)
    raw = body
    if kind == "chunks":
        headers += b"Transfer-Encoding: chunked\r\n"
        trailer = draw(st.sampled_from([b"", b"X-T: 1\r\n"]))
        raw = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"
    head = before + f"{method} {target} HTTP/1.1\r\n".encode() + headers + b"\r\n"
    return Sent(head + raw, target, body, keep_alive)


SECONDS = 30.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Unix socket of a server that answers each request with its target and body."""
    path = str(tmp_path_factory.mktemp("h") / "s")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    routes = [HttpRoute("*", "**", AccessBit.OPEN, max_body=LIMITS.message_bytes)]
    server = Http2Server((), (), LIMITS, tls=None, http_listeners=[listener], routes=routes)

    def serve() -> None:
        reader = EventReader(server.fetch, read_headers=http_headers)
        while (events := reader.fetch(100)) is not None:
            for event in events:
                if event.kind is EventKind.CALL:
                    target = str(dict(event.metadata)[":path"]).encode()
                    lines = b"200 OK\r\ncontent-length: %d\r\nx: %b\r\n"
                    told = lines % (len(event.message), target)
                    server.respond_http(event.call, told, event.message)

    thread = threading.Thread(target=serve)
    thread.start()
    yield path
    server.stop()
    thread.join()


def exchange(path: str, parts: Iterable[bytes]) -> bytes:
    """What is answered to bytes that come in parts, each after the one before has been read."""
    came, unread = b"", array("i", [0])
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.settimeout(SECONDS)
        end = monotonic() + SECONDS
        try:
            for part in parts:
                client.sendall(part)
                while fcntl.ioctl(client, termios.TIOCOUTQ, unread) == 0 and unread[0]:
                    assert monotonic() < end, "the server reads no more"
                    came += received(client)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it listens no more
        with suppress(ConnectionResetError):
            while part := client.recv(2**20):
                came += part
    return came


def received(client: socket.socket) -> bytes:
    return client.recv(2**20) if select.select([client], [], [], 0)[0] else b""


def answered(came: bytes) -> list[Sent]:
    """Requests as the server has had them, by its answers; the last one alone ends it."""
    found = []
    while came:
        head, _, came = came.partition(b"\r\n\r\n")
        lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(lines[b"content-length"])
        assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: "), head
        found.append(Sent(b"", lines[b"x"].decode(), came[:size], b"connection" not in lines))
        came = came[size:]
    return found


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(requests(), min_size=1, max_size=5), data=st.data())
def test_requests_are_the_same_however_their_bytes_are_cut(
    path: str, sent: list[Sent], data: st.DataObject
) -> None:
    # The first that closes its connection is the last; what follows is no request.
    sent = [*sent, Sent(b"GET /last HTTP/1.0\r\n\r\n", "/last", b"", False)]
    last = next(number for number, request in enumerate(sent) if not request.keep_alive)
    wanted = [Sent(b"", request.target, request.body, request.keep_alive) for request in sent]
    wanted, sent = wanted[: last + 1], sent[: last + 1]
    raw = b"".join(request.raw for request in sent)
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=20).map(sorted))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    parts[-1] += b"GET / HTTP/1.1\r\n"
    for cut in (parts, [raw[i : i + 1] for i in range(len(raw))]):
        assert answered(exchange(path, cut)) == wanted


POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
REFUSED = {
    "a bare LF after the line": b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    "a bare LF after a header": b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
    "a bare CR in a header": b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "a space before the first header": b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
    "a space before a colon": b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
    "a zero byte": b"GET / HTTP/1.1\r\nHost: x\r\nA: a\0b\r\n\r\n",
    "a control character": b"GET / HTTP/1.1\r\nHost: x\r\nA: a\x01b\r\n\r\n",
    "a name that is no token": b"GET / HTTP/1.1\r\nHost: x\r\nA\xff: b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method that is none": b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a proxy's method": b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a byte outside ASCII in the path": b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "two spaces before the path": b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space before the method": b" GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a space in the path": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "both lengths": POST + CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "the same length twice": POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "a list of lengths": POST + b"Content-Length: 1, 1\r\n\r\na",
    "a length with a sign": POST + b"Content-Length: +1\r\n\r\na",
    "a length beyond all": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "another encoding": POST + b"Transfer-Encoding: gzip\r\n\r\na",
    "two encodings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "almost chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "a chunk size with a space": POST + CHUNKED + b"\r\n1 \r\na\r\n0\r\n\r\n",
    "a chunk size with a prefix": POST + CHUNKED + b"\r\n0x1\r\na\r\n0\r\n\r\n",
    "a chunk size of 17 digits": POST + CHUNKED + b"\r\n" + b"1" * 17 + b"\r\na",
    "a chunk size before a bare LF": POST + CHUNKED + b"\r\n1\na\r\n0\r\n\r\n",
    "a chunk longer than it says": POST + CHUNKED + b"\r\n1\r\nab\r\n0\r\n\r\n",
    "a chunk's endless extension": POST + CHUNKED + b"\r\n1;" + b"a" * 200_000,
    "endless trailers": POST + CHUNKED + b"\r\n0\r\n" + b"A: b\r\n" * 50_000,
    "chunks of one byte": POST + CHUNKED + b"\r\n" + b"1\r\na\r\n" * 10_000,
    "endless empty lines": b"\r\n" * 50_000,
    "endless headers": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000,
    "large headers": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 16_380 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A:b\r\n" * 100 + b"\r\n",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_ambiguous_or_endless_is_no_request(path: str, case: str) -> None:
    raw = REFUSED[case]
    for size in (1, 1000, 10**6):
        # Byte by byte the endless ones would take long.
        if size > 1 or len(raw) < 1000:
            came = exchange(path, [raw[i : i + size] for i in range(0, len(raw), size)])
            # One answer, and no second: what follows is no request.
            assert came.startswith(b"HTTP/1.1 ") and came.count(b"\r\ndate: ") == 1, came
            assert came.split()[1] in {b"400", b"431"} and b"\r\nconnection: close\r\n" in came


def test_chunks_that_are_small_on_average_are_taken_if_they_are_few(path: str) -> None:
    post = POST + b"Connection: close\r\n" + CHUNKED + b"\r\n"
    raw = post + b"1\r\na\r\n" * 4000 + b"0\r\n\r\n"
    assert [sent.body for sent in answered(exchange(path, [raw]))] == [b"a" * 4000]
    long = post + (b"64\r\n" + b"a" * 100 + b"\r\n") * 20_000 + b"0\r\n\r\n"
    assert [len(sent.body) for sent in answered(exchange(path, [long]))] == [2_000_000]
