"""The compiled server with nothing behind it: what it is told and what it tells."""

import base64
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from serving.host.listeners import listen_on
from serving.transport.events import Event, EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.library import transport_refusal
from serving.transport.limits import AccessBit, Limits, Method
from tests.support.http2_peer import Headers, Peer, framed

pytestmark = pytest.mark.skipif(transport_refusal() is not None, reason=str(transport_refusal()))
PATH = "/test.Service/Method"
MANY = 2**20
SECONDS = 60.0
LIMITS = Limits(
    message_bytes=MANY,
    held_bytes=8 * MANY,
    connections=64,
    address_connections=48,
    connection_calls=64,
    calls=64,
    header_bytes=16 * 1024,
    stream_messages=8,
    handshake_seconds=SECONDS,
    message_seconds=SECONDS,
    idle_seconds=SECONDS,
    stalled_seconds=SECONDS,
    keepalive_seconds=SECONDS,
    keepalive_timeout_seconds=SECONDS,
    least_ping_seconds=0.0,
    age_seconds=math.inf,
    grace_seconds=SECONDS,
    rate=0.0,
    burst=1.0,
)  # fmt: skip


@contextmanager
def answering(listeners: list[socket.socket], limits: Limits = LIMITS) -> Iterator[Http2Server]:
    methods = [Method(PATH, False, AccessBit.OPEN, with_headers=True)]
    server = Http2Server(listeners, methods, limits, tls=None)
    try:
        yield server
    finally:
        server.stop()


def next_event(server: Http2Server) -> Event:
    reader = EventReader(server.fetch)
    for _ in range(round(SECONDS)):
        events = reader.fetch(1000)
        assert events is not None
        if events:
            (event,) = events
            return event
    raise AssertionError("no event came")


def metadata_of(server: Http2Server, port: int, headers: Headers) -> list[tuple[str, str | bytes]]:
    with Peer(f"127.0.0.1:{port}") as peer:
        stream = peer.begin(headers, path=PATH)
        peer.put(stream, framed(b"message"), ends=True)
        event = next_event(server)
        server.respond(event.call, b"answer")
        assert peer.wait(stream).messages() == [b"answer"]
    return [pair for pair in event.metadata if pair[0].startswith("x-")]


def test_metadata_of_bytes_may_come_joined() -> None:
    first, second = b"\x00\xfb\xff", bytes(range(256))
    texts = [base64.b64encode(value).decode() for value in (first, second)]
    headers = [("x-a-bin", f"{texts[0]},{texts[1].rstrip('=')} , {texts[0]}"), ("x-b", "1,2")]
    listeners = listen_on("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    with answering(listeners) as server:
        assert metadata_of(server, port, headers) == [
            ("x-a-bin", first),
            ("x-a-bin", second),
            ("x-a-bin", first),
            ("x-b", "1,2"),
        ]
        assert metadata_of(server, port, [("x-a-bin", "")]) == [("x-a-bin", b"")]
