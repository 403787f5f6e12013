import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from serving.status import Status, StatusCode
from serving.transport.client_settings import ClientLimits, ClientTls, Endpoint
from serving.transport.events import Event
from serving.transport.http2_client import Http2Client, OutgoingCall
from serving.transport.http2_server import Http2Server
from tests.attacks.raw_http2 import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    frame,
    frames,
    message,
)
from tests.serving.transport.test_http2_client import SECONDS, client_of
from tests.support.echo_servers import LIMITS, PATH, compiled_echo, grpcio_echo
from tests.support.scripted_server import HEAD, read_on, read_preface, scripted_server, trailers
from tests.support.tls import issue_files
from tests.support.waiting import until

REFUSED, CANCEL = 7, 8
OK = (b"grpc-status", b"0")


def statuses(client: Http2Client, *calls: OutgoingCall) -> list[Status | None]:
    client.start(calls)
    return [answer.status for answer in client.finish()]


def echoes(client: Http2Client, text: bytes = b"text", *, may_repeat: bool = True) -> bool:
    client.start([OutgoingCall(0, text, SECONDS, may_repeat=may_repeat)])
    (answer,) = client.finish()
    return answer.status is None and answer.message == text


def opened(connection: socket.socket) -> Iterator[Frame]:
    """Frames that a client sends, once the server has greeted it."""
    read_preface(connection)
    connection.sendall(frame(SETTINGS, 0, 0, b""))
    return frames(connection)


def answer_call(connection: socket.socket, stream: int, text: bytes = b"text") -> None:
    connection.sendall(
        frame(HEADERS, 4, stream, HEAD)
        + frame(DATA, 0, stream, message(text))
        + trailers(stream, OK)
    )


def asked(connection: socket.socket) -> Iterator[int]:
    """Streams of requests that a client has sent in full."""
    for one in opened(connection):
        if one.kind == DATA and one.flags & END_STREAM:
            yield one.stream


def answer_calls(connection: socket.socket) -> None:
    for stream in asked(connection):
        answer_call(connection, stream)


def test_a_call_that_nobody_answers_ends_at_its_deadline() -> None:
    def silent(server: Http2Server, event: Event) -> None:
        pass

    with (
        compiled_echo(respond=silent) as late,
        compiled_echo() as quick,
        client_of(late, quick) as client,
    ):
        for seconds in (0.05, 0.2):
            began = time.monotonic()
            client.start([OutgoingCall(0, b"", seconds), OutgoingCall(1, b"x", SECONDS)])
            first, second = client.finish()
            assert time.monotonic() - began >= seconds
            words = f"host-0: no answer within {seconds:g} s"
            assert first.status == Status(StatusCode.DEADLINE_EXCEEDED, words)
            assert second.message == b"x"
        assert statuses(client, OutgoingCall(0, b"", 0.0))[0] is not None


def test_a_server_that_never_greets_or_accepts_is_late_and_then_given_up() -> None:
    limits = ClientLimits(
        keepalive_seconds=0.1, keepalive_timeout_seconds=0.1, least_backoff_seconds=SECONDS
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        client_of(f"127.0.0.1:{listener.getsockname()[1]}", limits=limits) as client,
    ):
        codes = []
        while codes.count(StatusCode.UNAVAILABLE) < 3:
            (status,) = statuses(client, OutgoingCall(0, b"", 0.05))
            assert status is not None
            codes.append(status.code)
        assert codes[0] is StatusCode.DEADLINE_EXCEEDED
        assert status.message == "host-0: no answer to a PING within 0.1 s"


def test_an_address_that_answers_nothing_costs_the_time_to_connect() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        # Its queue is full: what comes further is not answered.
        for _ in range(4):
            other = stack.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        limits = ClientLimits(connect_seconds=0.3)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client = stack.enter_context(client_of(address, limits=limits))
        expected = [
            (0.1, StatusCode.DEADLINE_EXCEEDED, "no connection within 0.1 s"),
            (SECONDS, StatusCode.UNAVAILABLE, "no connection within 0.3 s"),
        ]
        for seconds, code, words in expected:
            (status,) = statuses(client, OutgoingCall(0, b"", seconds))
            assert status == Status(code, f"host-0: {words}")


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_waiting_takes_no_processor_time(secure: bool, tmp_path: Path) -> None:
    tls = ClientTls(issue_files(tmp_path).ca) if secure else None
    limits = ClientLimits(keepalive_seconds=0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(f"localhost:{listener.getsockname()[1]}", "host-0")
        with Http2Client([endpoint], [PATH], limits, tls=tls) as client:
            began = time.thread_time()
            (status,) = statuses(client, OutgoingCall(0, b"", 1.0))
            assert status is not None and status.code is StatusCode.DEADLINE_EXCEEDED
            assert time.thread_time() - began < 0.2


def test_a_server_that_reads_nothing_costs_its_own_calls_alone() -> None:
    def script(connection: socket.socket, _: int) -> None:
        read_preface(connection)
        # Windows without an end.
        setting = (4).to_bytes(2, "big") + (2**31 - 1).to_bytes(4, "big")
        window = (2**31 - 2**16).to_bytes(4, "big")
        connection.sendall(frame(SETTINGS, 0, 0, setting) + frame(WINDOW_UPDATE, 0, 0, window))
        over.wait(SECONDS)

    over = threading.Event()
    with (
        scripted_server(script) as server,
        compiled_echo() as honest,
        client_of(server.address, honest) as client,
    ):
        for _ in range(3):
            text = bytes(8 * 2**20)
            client.start([OutgoingCall(0, text, 0.2), OutgoingCall(1, b"x", SECONDS)])
            stuck, quick = client.finish()
            assert stuck.status is not None
            assert stuck.status.code is StatusCode.DEADLINE_EXCEEDED
            assert quick.message == b"x"
        over.set()


def test_calls_wait_for_each_other_where_a_server_takes_few_at_once() -> None:
    with (
        compiled_echo(limits=replace(LIMITS, connection_calls=3)) as address,
        client_of(address) as client,
    ):
        for _ in range(3):
            client.start([OutgoingCall(0, bytes([at]), SECONDS) for at in range(90)])
            answers = client.finish()
            assert [answer.status for answer in answers] == [None] * 90
            assert [bytes(answer.message) for answer in answers] == [bytes([n]) for n in range(90)]


def test_a_connection_that_ended_between_two_batches_loses_no_call() -> None:
    answered, ended = threading.Semaphore(0), threading.Semaphore(0)

    def script(connection: socket.socket, _: int) -> None:
        answer_call(connection, next(asked(connection)))
        answered.acquire(timeout=SECONDS)
        connection.close()
        ended.release()

    with scripted_server(script) as server, client_of(server.address) as client:
        for _ in range(3):
            # Not even a call that may not be repeated is lost, as nothing of it was sent.
            assert echoes(client, may_repeat=False)
            answered.release()
            assert ended.acquire(timeout=SECONDS)
        assert server.connections == 3


@pytest.mark.parametrize("may_repeat", [True, False])
def test_a_connection_that_ends_within_a_call_is_tried_again_if_the_caller_allows(
    may_repeat: bool,
) -> None:
    def script(connection: socket.socket, number: int) -> None:
        # The first answers one call, and takes another.
        for turn, stream in enumerate(asked(connection)):
            if (number, turn) == (0, 1):
                return
            answer_call(connection, stream)

    with scripted_server(script) as server, client_of(server.address) as client:
        assert echoes(client)
        client.start([OutgoingCall(0, b"text", SECONDS, may_repeat=may_repeat)])
        (answer,) = client.finish()
        if may_repeat:
            assert answer.message == b"text"
        else:
            assert answer.status is not None
            assert answer.status.code is StatusCode.UNAVAILABLE
            assert answer.status.message.startswith("host-0: ")
            assert echoes(client, may_repeat=False)
        assert server.connections == 2


def test_a_call_is_sent_twice_at_most_and_its_server_asked_again_after_a_pause() -> None:
    calls = []

    def script(connection: socket.socket, number: int) -> None:
        for one in opened(connection):
            if one.kind == DATA:
                calls.append(number)
                return

    limits = ClientLimits(least_backoff_seconds=SECONDS)
    with scripted_server(script) as server, client_of(server.address, limits=limits) as client:
        # From the second on there is a pause, in which calls end at once.
        for _ in range(2):
            (status,) = statuses(client, OutgoingCall(0, b"text", SECONDS))
            assert status is not None and status.code is StatusCode.UNAVAILABLE
        assert (calls, server.connections) == ([0, 1], 2)

    def comes_back(connection: socket.socket, number: int) -> None:
        if number >= 4:
            answer_calls(connection)

    limits = ClientLimits(least_backoff_seconds=0.02, most_backoff_seconds=0.1)
    with scripted_server(comes_back) as server, client_of(server.address, limits=limits) as client:
        until(lambda: echoes(client), "it answers after pauses")
        assert server.connections == 5


def test_calls_above_the_last_of_a_goaway_are_sent_again_and_others_are_waited_for() -> None:
    def script(connection: socket.socket, number: int) -> None:
        if number == 1:
            answer_calls(connection)
            return
        begun = list(islice(asked(connection), 4))
        connection.sendall(frame(GOAWAY, 0, 0, begun[1].to_bytes(4, "big") + bytes(4)))
        for stream in begun[:2]:
            answer_call(connection, stream, b"first")
        read_on(connection)

    with scripted_server(script) as server, client_of(server.address) as client:
        client.start([OutgoingCall(0, b"", SECONDS, may_repeat=False) for _ in range(4)])
        answers = [bytes(answer.message) for answer in client.finish()]
        assert answers == [b"first", b"first", b"text", b"text"]
        assert echoes(client)
        assert server.connections == 2


def test_a_refused_stream_is_safe_to_send_again_once() -> None:
    def script(connection: socket.socket, _: int) -> None:
        for stream in asked(connection):
            if stream == 3:
                answer_call(connection, stream)
            else:
                connection.sendall(frame(RESET, 0, stream, REFUSED.to_bytes(4, "big")))

    with scripted_server(script) as server, client_of(server.address) as client:
        assert echoes(client, may_repeat=False)
        (status,) = statuses(client, OutgoingCall(0, b"", SECONDS))
        assert status == Status(StatusCode.UNAVAILABLE, "host-0: the call was refused")


@pytest.mark.parametrize("kind", ["compiled", "grpcio"])
def test_connections_of_a_certain_age_are_replaced_without_loss(kind: str) -> None:
    milliseconds = 300
    aged = (
        compiled_echo(limits=replace(LIMITS, age_seconds=milliseconds / 1000))
        if kind == "compiled"
        else grpcio_echo(
            options=[
                ("grpc.max_connection_age_ms", milliseconds),
                ("grpc.max_connection_age_grace_ms", 60_000),
            ]
        )
    )
    with aged as address, client_of(address) as client:
        end = time.monotonic() + 5 * milliseconds / 1000
        while time.monotonic() < end:
            client.start([OutgoingCall(0, b"x" * 3000, SECONDS, may_repeat=False)] * 8)
            assert [answer.status for answer in client.finish()] == [None] * 8
            time.sleep(0.002)


def test_a_silent_connection_is_pinged_while_calls_wait_and_then_given_up() -> None:
    pings = []

    def script(connection: socket.socket, number: int) -> None:
        if number == 1:
            answer_calls(connection)
            return
        # The first PING is answered, the others are not.
        read_preface(connection)
        connection.sendall(frame(SETTINGS, 0, 0, b""))
        answer_first = True
        with _Mute(connection) as mute:
            for one in frames(mute):
                if one.kind == PING and not one.flags & ACK:
                    pings.append(number)
                    if answer_first:
                        connection.sendall(frame(PING, ACK, 0, one.payload))
                    answer_first = False

    limits = ClientLimits(keepalive_seconds=0.2, keepalive_timeout_seconds=0.2)
    with scripted_server(script) as server, client_of(server.address, limits=limits) as client:
        assert echoes(client)
    assert pings == [0, 0]
    assert server.connections == 2


class _Mute(socket.socket):
    """A connection on which `frames` answers nothing."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(fileno=os.dup(connection.fileno()))
        self.settimeout(SECONDS)

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
        pass


def test_a_cancelled_call_is_reset() -> None:
    resets: list[tuple[int, int]] = []

    def script(connection: socket.socket, _: int) -> None:
        for one in opened(connection):
            if one.kind == RESET:
                resets.append((one.stream, int.from_bytes(one.payload, "big")))
                answer_call(connection, one.stream, b"late")
            if one.kind == DATA and one.stream in (1, 7):
                answer_call(connection, one.stream)

    with scripted_server(script) as server, client_of(server.address) as client:
        assert echoes(client)
        numbers = client.start([OutgoingCall(0, b"", SECONDS) for _ in range(2)])
        client.cancel(numbers[1])
        client.clear()
        assert echoes(client)
    assert sorted(resets) == [(3, CANCEL), (5, CANCEL)]


HTTP = {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14, 500: 2, 418: 2}
RESETS = {0: 2, 1: 13, 2: 13, 3: 13, 4: 13, 6: 13, 8: 1, 9: 13, 10: 13, 11: 8, 12: 7}


def test_http_statuses_and_resets_mean_what_grpc_says() -> None:
    refusals = [
        lambda stream, status=status: trailers(stream, (b":status", b"%d" % status))
        for status in HTTP
    ] + [
        lambda stream, error=error: frame(RESET, 0, stream, error.to_bytes(4, "big"))
        for error in RESETS
    ]

    def script(connection: socket.socket, _: int) -> None:
        for stream, refusal in zip(asked(connection), refusals, strict=False):
            connection.sendall(refusal(stream))

    with scripted_server(script) as server, client_of(server.address) as client:
        for status, code in HTTP.items():
            (found,) = statuses(client, OutgoingCall(0, b"", SECONDS))
            assert found is not None and found.code.number == code
            assert found.message == f"host-0: HTTP status {status}"
        for error, code in RESETS.items():
            (found,) = statuses(client, OutgoingCall(0, b"", SECONDS, may_repeat=False))
            assert found is not None and found.code.number == code, error
            assert found.message.startswith("host-0: ")


def test_a_client_closes_what_it_opened() -> None:
    ended = []

    def script(connection: socket.socket, number: int) -> None:
        with suppress(ConnectionError):
            read_on(connection)
        ended.append(number)

    with scripted_server(script) as server:
        for _ in range(20):
            with client_of(server.address, server.address, "unix:/none") as client:
                client.start([OutgoingCall(at, b"x", SECONDS) for at in range(3)])
                assert client.wait(SECONDS) == [2]
                assert client.wait(0.01) == []
        until(lambda: sorted(ended) == list(range(40)), "all connections are closed")
