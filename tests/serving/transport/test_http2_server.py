import base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from time import sleep

import pytest

from serving.abi.transport import AccessBit
from serving.host.listeners import listen_on
from serving.transport.events import Event, EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.limits import Limits, Method
from tests.support.echo_servers import LIMITS as DEFAULTS
from tests.support.http2_peer import Headers, Peer, framed
from tests.support.waiting import until

PATH = "/test.Service/Method"
MANY = 2**20
LIMITS = replace(
    DEFAULTS,
    message_bytes=MANY,
    held_bytes=8 * MANY,
    connections=64,
    address_connections=48,
    connection_calls=64,
    calls=64,
)


@contextmanager
def answering(
    limits: Limits = LIMITS, busy_poll_seconds: float = 0.0
) -> Iterator[tuple[Http2Server, str]]:
    listeners = listen_on("127.0.0.1", 0)
    url = f"127.0.0.1:{listeners[0].getsockname()[1]}"
    methods = [Method(PATH, AccessBit.PREDICT, with_headers=True)]
    server = Http2Server(listeners, methods, limits, tls=None, busy_poll_seconds=busy_poll_seconds)
    try:
        yield server, url
    finally:
        server.stop()


def next_event(server: Http2Server) -> Event:
    reader = EventReader(server.fetch)
    for _ in range(60):
        events = reader.fetch(1000)
        assert events is not None
        if events:
            (event,) = events
            return event
    raise AssertionError("no event came")


def metadata_of(server: Http2Server, url: str, headers: Headers) -> list[tuple[str, str | bytes]]:
    with Peer(url) as peer:
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
    with answering() as (server, url):
        assert metadata_of(server, url, headers) == [
            ("x-a-bin", first),
            ("x-a-bin", second),
            ("x-a-bin", first),
            ("x-b", "1,2"),
        ]
        assert metadata_of(server, url, [("x-a-bin", "")]) == [("x-a-bin", b"")]


@pytest.mark.parametrize("pause", [0.0, 0.03])
def test_calls_are_answered_while_threads_look_for_them_and_after(pause: float) -> None:
    with answering(busy_poll_seconds=0.01) as (server, url), Peer(url) as peer:
        for number in range(20):
            sleep(pause)
            stream = peer.begin(path=PATH)
            peer.put(stream, framed(b"message"), ends=True)
            server.respond(next_event(server).call, b"answer %d" % number)
            assert peer.wait(stream).messages() == [b"answer %d" % number]


def test_an_address_leaves_calls_to_others_whatever_connections_it_has() -> None:
    limits = replace(LIMITS, calls=1024, connection_calls=2000)
    with answering(limits) as (server, url), ExitStack() as stack:
        reader, handed, sent = EventReader(server.fetch), 0, 0

        def taken(source: str, connections: int) -> int:
            """Calls in progress of an address that makes 300 on each of its connections."""
            nonlocal sent
            before = handed
            for _ in range(connections):
                peer = stack.enter_context(Peer(url, source=source))
                for _ in range(300):
                    peer.put(peer.begin(path=PATH), framed(b"message"), ends=True)
                sent += 300
            until(lambda: told() + server.counters.refused[8] == sent, "all are decided")
            return handed - before

        def told() -> int:
            nonlocal handed
            handed += len(reader.fetch(10) or ())
            return handed

        assert 700 <= taken("127.66.1.1", 12) <= 768
        assert 100 <= taken("127.66.1.2", 1) <= 162
        # A third one still has some.
        assert 25 <= taken("127.66.1.3", 1) <= 128


def test_an_address_leaves_memory_to_others_whatever_connections_it_has() -> None:
    with answering() as (server, url), ExitStack() as stack:
        for _ in range(12):
            peer = stack.enter_context(Peer(url, source="127.66.1.1"))
            for _ in range(20):
                # Memory for the whole message is had when its first bytes have come.
                peer.put(peer.begin(path=PATH), framed(bytes(100_000))[:50], ends=False)
        until(lambda: server.counters.refused[8] > 100, "they hold what they may")
        assert 4 * MANY < server.counters.held_bytes <= 6 * MANY
        other = stack.enter_context(Peer(url, source="127.66.1.2"))
        stream = other.begin(path=PATH)
        other.put(stream, framed(bytes(500_000)), ends=True)
        server.respond(next_event(server).call, b"answer")
        assert other.wait(stream).messages() == [b"answer"]
