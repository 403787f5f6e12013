"""The compiled client and servers that are hostile or broken: what ends, and what does not."""

import socket
import ssl
import time

import pytest

from serving.status import StatusCode
from serving.transport.client_settings import ClientLimits, Endpoint
from serving.transport.http2_client import Http2Client, OutgoingCall
from tests.attacks.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    header,
    message,
)
from tests.support.echo_servers import PATH, compiled_echo
from tests.support.scripted_server import (
    HEAD,
    Script,
    read_on,
    read_preface,
    scripted_server,
    trailers,
)
from tests.support.tls import IssuedFiles

SECONDS = 60.0
PUSH = 5
REQUEST = b"the request"
EARLY_HINTS = header(b":status", b"103")
OK = (b"grpc-status", b"0")
LIMITS = ClientLimits(answer_bytes=2**20, least_backoff_seconds=SECONDS)

# What a server repeats without an end, once the call has come on its first stream.
ENDLESS = {
    "bytes that are no HTTP/2": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "PINGs": frame(PING, 0, 0, bytes(8)),
    "SETTINGS": frame(SETTINGS, 0, 0, b""),
    "priorities": frame(PRIORITY, 0, 1, bytes(5)),
    "windows of the connection": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1"),
    "windows of the call": frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1"),
    "frames of an unknown kind": frame(200, 0, 0, b"x"),
    "interim answers": frame(HEADERS, END_HEADERS, 1, EARLY_HINTS),
    "answers that do not end": frame(HEADERS, END_HEADERS, 1, HEAD),
    "trailers": trailers(1, OK, head=HEAD),
    "headers for no call": frame(HEADERS, END_HEADERS, 99, HEAD),
    "data for no call": frame(DATA, 0, 99, b"x"),
    "data before headers": frame(DATA, 0, 1, b"x"),
    "frames larger than allowed": frame(DATA, 0, 1, bytes(2**21)),
    "a settings frame of a wrong size": frame(SETTINGS, 0, 0, b"x"),
    "pushed answers": frame(PUSH, END_HEADERS, 1, b"\0\0\0\2" + HEAD),
    "headers that are no HPACK": frame(HEADERS, END_HEADERS, 1, b"\xff" * 20),
    "goodbyes": frame(GOAWAY, 0, 0, bytes(8)),
}
PADDED = 8
HEADERS_OF_ANSWER = frame(HEADERS, END_HEADERS, 1, HEAD)
# The same after the headers of an answer.
ENDLESS_DATA = {
    "data beyond the message": frame(DATA, 0, 1, message(b"x")),
    "data that is empty": frame(DATA, 0, 1, b""),
    "data that is padding": frame(DATA, PADDED, 1, b"\xff" + bytes(255)),
}
# What ends with the connection or with the call, and so may have another code.
ENDS_THE_CALL = {
    "answers that do not end",
    "trailers",
    "data before headers",
    "windows of the call",
}


def opened(connection: socket.socket) -> None:
    """Greets the client and reads until its call has come: before, its stream is none."""
    read_preface(connection)
    connection.sendall(frame(SETTINGS, 0, 0, b""))
    got = b""
    while REQUEST not in got:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("the client has gone")
        got += part


def endless(data: bytes, *, first: bytes = b"") -> Script:
    def script(connection: socket.socket, _: int) -> None:
        opened(connection)
        connection.sendall(first)
        many = data * max(1, 10_000 // len(data))
        while True:
            connection.sendall(many)

    return script


def once(data: bytes, *, closes: bool = False) -> Script:
    def script(connection: socket.socket, _: int) -> None:
        opened(connection)
        connection.sendall(data)
        if not closes:
            read_on(connection)

    return script


def ends(script: Script) -> tuple[StatusCode | None, str, int]:
    """How a call to a hostile server ends beside one to an honest one; the first's connections."""
    with scripted_server(script) as hostile, compiled_echo() as honest:
        endpoints = [Endpoint(hostile.address, "bad"), Endpoint(honest, "good")]
        with Http2Client(endpoints, [PATH], LIMITS) as client:
            began = time.process_time()
            client.start([OutgoingCall(at, REQUEST, SECONDS) for at in range(2)])
            bad, good = client.finish()
            assert good.message == REQUEST
            assert time.process_time() - began < 10.0
            # Nothing is left of it for the next.
            client.start([OutgoingCall(1, b"next", SECONDS)])
            assert client.finish()[0].message == b"next"
            if bad.status is None:
                return None, "", hostile.connections
            return bad.status.code, bad.status.message, hostile.connections


@pytest.mark.parametrize("what", [*ENDLESS, *ENDLESS_DATA])
def test_a_server_that_sends_without_an_end_is_left(what: str) -> None:
    is_answer = what in ENDLESS_DATA
    data, first = (ENDLESS | ENDLESS_DATA)[what], HEADERS_OF_ANSWER if is_answer else b""
    code, words, connections = ends(endless(data, first=first))
    assert code is not StatusCode.DEADLINE_EXCEEDED
    assert connections <= 2
    if is_answer:
        assert code in (StatusCode.UNAVAILABLE, StatusCode.INTERNAL)
    elif what not in ENDS_THE_CALL:
        assert code is StatusCode.UNAVAILABLE
        assert words.startswith("bad: ")


BAD_ANSWERS = {
    "two messages": (frame(DATA, 0, 1, 2 * message(b"x")) + trailers(1, OK), StatusCode.INTERNAL),
    "more than was declared": (frame(DATA, 0, 1, message(b"x") + b"y"), StatusCode.INTERNAL),
    "compressed": (frame(DATA, 0, 1, message(b"x", compressed=1)), StatusCode.INTERNAL),
    "4 GiB": (frame(DATA, 0, 1, message(b"", length=2**32 - 1)), StatusCode.RESOURCE_EXHAUSTED),
    "nothing": (trailers(1, OK), StatusCode.INTERNAL),
    "half a prefix": (frame(DATA, 0, 1, b"\0\0") + trailers(1, OK), StatusCode.INTERNAL),
    "half a message": (
        frame(DATA, 0, 1, message(b"x", length=2)) + trailers(1, OK),
        StatusCode.INTERNAL,
    ),
    "no status": (frame(DATA, END_STREAM, 1, message(b"x")), StatusCode.UNKNOWN),
    "no number": (trailers(1, (b"grpc-status", b"abc")), StatusCode.UNKNOWN),
    "no code": (trailers(1, (b"grpc-status", b"17")), StatusCode.UNKNOWN),
    "broken words": (
        trailers(1, (b"grpc-status", b"9"), (b"grpc-message", b"%e4%zz%")),
        StatusCode.FAILED_PRECONDITION,
    ),
    "a pseudo-header in trailers": (trailers(1, (b":status", b"200"), OK), StatusCode.INTERNAL),
}


@pytest.mark.parametrize("what", BAD_ANSWERS)
def test_a_bad_answer_ends_its_call_alone(what: str) -> None:
    data, expected = BAD_ANSWERS[what]
    code, _, connections = ends(once(HEADERS_OF_ANSWER + data))
    assert (code, connections) == (expected, 1)


CUT = {
    "at once": b"",
    "within a frame": HEADERS_OF_ANSWER[:-3],
    "within a message": HEADERS_OF_ANSWER + frame(DATA, 0, 1, message(b"x" * 10, length=1000)),
    "before the trailers": HEADERS_OF_ANSWER + frame(DATA, 0, 1, message(b"x")),
}
MANY_HEADERS = HEAD + b"".join(header(b"x", b"y" * 1000) for _ in range(16))
OPEN = frame(HEADERS, 0, 1, HEAD)
GIVEN_UP: dict[str, Script] = {
    "full continuations": endless(frame(CONTINUATION, 0, 1, header(b"x", b"y" * 1000)), first=OPEN),
    "empty continuations": endless(frame(CONTINUATION, 0, 1, b""), first=OPEN),
    "more headers than are allowed": once(frame(HEADERS, END_HEADERS, 1, MANY_HEADERS)),
    **{f"cut {where}": once(data, closes=True) for where, data in CUT.items()},
}


@pytest.mark.parametrize("what", GIVEN_UP)
def test_a_connection_with_too_many_headers_or_that_is_cut_is_unavailable(what: str) -> None:
    code, words, connections = ends(GIVEN_UP[what])
    assert (code, connections) == (StatusCode.UNAVAILABLE, 2) and words.startswith("bad: ")
    if what == "more headers than are allowed":
        assert words == "bad: the peer sends more headers than are allowed"


def secured(script: Script, issued: IssuedFiles) -> Script:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    context.set_alpn_protocols(["h2"])

    def over_tls(connection: socket.socket, number: int) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            script(secure, number)

    return over_tls


def hostile_scripts() -> list[Script]:
    whole = [HEADERS_OF_ANSWER + data for data, _ in BAD_ANSWERS.values()]
    return [
        *map(endless, ENDLESS.values()),
        *(endless(data, first=HEADERS_OF_ANSWER) for data in ENDLESS_DATA.values()),
        *map(once, whole),
        *(once(data, closes=True) for data in CUT.values()),
    ]
