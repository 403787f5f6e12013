"""Clients that reset calls: those that do it at once are closed, those that waited are not."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from serving.abi.transport import EventKind
from serving.transport.events import EventReader
from serving.transport.http2_server import Http2Server
from tests.attacks.raw_http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    RESET,
    SETTINGS,
    block,
    connect,
    frame,
    frames,
    message,
)
from tests.support.silent_server import silent_server
from tests.support.waiting import until

PATH = "/test/Call"
CANCEL = (8).to_bytes(4, "big")
ENHANCE_YOUR_CALM = 11
# More than the server allows a connection at once.
MANY, ROUNDS = 300, 20


class Client:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = frames(connection)
        self._wait_for_settings()

    def send(self, sent: Iterable[bytes]) -> None:
        self._connection.sendall(b"".join(sent))

    def is_expelled(self) -> bool:
        """Whether the server has told it to calm down, once all that was sent is read."""
        self.send([frame(SETTINGS, 0, 0, b"")])
        return self._wait_for_settings()

    def _wait_for_settings(self) -> bool:
        for one in self._frames:
            if one.kind == GOAWAY:
                assert int.from_bytes(one.payload[4:8], "big") == ENHANCE_YOUR_CALM
                return True
            if one.kind == SETTINGS and one.flags & ACK:
                return False
        raise AssertionError("the server has closed, and has not said why")


@pytest.fixture
def silent() -> Iterator[tuple[Http2Server, Client]]:
    with silent_server(PATH) as (server, address), connect(address) as connection:
        connection.settimeout(60)
        yield server, Client(connection)


def headers(stream: int, timeout: str) -> bytes:
    head = block(PATH.encode(), [(b"grpc-timeout", timeout.encode())])
    return frame(HEADERS, END_HEADERS, stream, head)


def whole(stream: int, timeout: str) -> bytes:
    return headers(stream, timeout) + frame(DATA, END_STREAM, stream, message(b"abc"))


def reset(stream: int) -> bytes:
    return frame(RESET, 0, stream, CANCEL)


def of_round(number: int) -> range:
    return range(1 + 2 * MANY * number, 1 + 2 * MANY * (number + 1), 2)


# The last are whole when they are reset, and nobody has fetched them.
FLOODS = [
    *((begun, timeout, 0.0) for begun in (headers, whole) for timeout in ("60S", "50m", "1n")),
    (whole, "1m", 0.002),
]


@pytest.mark.parametrize(("begun", "timeout", "pause"), FLOODS)
def test_clients_that_reset_their_calls_at_once_lose_their_connection(
    silent: tuple[Http2Server, Client],
    begun: Callable[[int, str], bytes],
    timeout: str,
    pause: float,
) -> None:
    server, client = silent
    for number in range(ROUNDS):
        streams = of_round(number)
        if pause:
            client.send(begun(stream, timeout) for stream in streams)
            time.sleep(pause)
            client.send(reset(stream) for stream in streams)
        else:
            client.send(begun(stream, timeout) + reset(stream) for stream in streams)
        if client.is_expelled():
            break
    else:
        pytest.fail(f"{ROUNDS * MANY} resets were taken")
    until(lambda: server.counters.too_many_resets == 1, "the connection is counted")


def test_clients_may_give_up_calls_at_deadlines_before_their_messages_are_read(
    silent: tuple[Http2Server, Client],
) -> None:
    server, client = silent
    for number in range(ROUNDS):
        client.send(headers(s, "60m") for s in of_round(number))
        time.sleep(0.06)
        client.send(reset(s) for s in of_round(number))
    assert not client.is_expelled()
    assert server.counters.too_many_resets == 0


def test_clients_may_give_up_all_calls_at_deadlines(silent: tuple[Http2Server, Client]) -> None:
    server, client = silent
    reader = EventReader(server.fetch)
    for number in range(ROUNDS):
        client.send(whole(s, "20m") for s in of_round(number))
        cancelled = 0
        time.sleep(0.02)
        client.send(reset(s) for s in of_round(number))
        while cancelled < MANY:
            events = reader.fetch(60_000)
            assert events, f"{cancelled} of {MANY} resets were told"
            cancelled += sum(event.kind is EventKind.CANCELLED for event in events)
    assert not client.is_expelled()
    assert server.counters.too_many_resets == 0
