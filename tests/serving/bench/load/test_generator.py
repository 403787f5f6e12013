"""The load generator against gRPC servers in other processes, and against bare sockets."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from kernels.errors import InputError
from serving.bench.load.generator import constant_schedule, poisson_schedule, run_closed, run_open
from serving.bench.load.library import load_generator_refusal
from serving.bench.load.process import run_in_process
from serving.bench.load.result import LoadResult
from serving.bench.load.target import Target
from serving.bench.servers.server_under_test import target_of
from tests.attacks.raw_http2 import GOAWAY, RESET, frame
from tests.serving.transport.test_http2_client_failures import OK, answer_call, asked
from tests.support.scripted_server import HEAD, Script, scripted_server, trailers

_REFUSAL = load_generator_refusal()
pytestmark = pytest.mark.skipif(_REFUSAL is not None, reason=_REFUSAL or "")

# What it does is said by the message: "sleep 0.5", "abort 9 why", "big 1000", else it is echoed.
_SERVER = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import grpc

def answer(message, context):
    word, *rest = message.split(b" ", 2)
    if word == b"sleep":
        time.sleep(float(rest[0]))
    if word == b"abort":
        code = next(c for c in grpc.StatusCode if c.value[0] == int(rest[0]))
        context.abort(code, rest[1].decode())
    if word == b"big":
        return bytes(int(rest[0]))
    if word == b"left":
        left = context.time_remaining()
        return b"none" if left is None or left > 1e6 else str(left).encode()
    return message

port, threads, *options = sys.argv[1:]
pairs = [(name, int(value)) for name, value in (option.split("=") for option in options)]
server = grpc.server(
    ThreadPoolExecutor(int(threads)),
    options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1), *pairs],
)
handler = grpc.unary_unary_rpc_method_handler(answer)
server.add_registered_method_handlers(
    "inference.GRPCInferenceService", {"ModelInfer": handler}
)
port = server.add_insecure_port(f"127.0.0.1:{port}")
server.start()
print(port, flush=True)
server.wait_for_termination()
"""


@contextmanager
def _server(
    *options: str, port: int = 0, threads: int = 8
) -> Iterator[tuple[Target, subprocess.Popen[str]]]:
    command = [sys.executable, "-c", _SERVER, str(port), str(threads), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Target("127.0.0.1", int(process.stdout.readline())), process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with _server() as (target, _):
        yield target


@contextmanager
def _peer(script: Script) -> Iterator[Target]:
    with scripted_server(script) as server:
        yield target_of(server.address)


def opened(target: Target, *messages: bytes, calls: int = 1, **more: Any) -> LoadResult:
    """Calls that are due at once, over one connection."""
    return run_open(target, messages, connections=1, schedule=np.zeros(calls), **more)


def test_closed_loop_answers_every_call_and_spreads_them_over_the_connections(
    target: Target,
) -> None:
    messages = [b"one", b"two!", b""]
    result = run_closed(target, messages, connections=3, concurrency=6, seconds=0.5)
    assert set(result.counts) == {"OK"} and result.errors == {}
    assert result.responses == dict(enumerate(messages))
    assert result.response_bytes[:3].tolist() == [3, 4, 0]
    assert result.message_index[:4].tolist() == [0, 1, 2, 0]
    assert result.connection_calls.sum() == len(result.codes)
    assert result.connection_calls.min() > 0.1 * result.connection_calls.sum()
    assert result.reconnects.tolist() == [0, 0, 0]
    assert 0.5 <= result.seconds < 10 and result.ok_per_second > 5
    assert (result.latency > 0).all() and (np.diff(result.scheduled) >= 0).all()


def test_closed_loop_keeps_only_so_many_calls_open(target: Target) -> None:
    result = run_closed(target, [b"sleep 0.1"], connections=2, concurrency=4, seconds=0.5)
    assert result.counts == {"OK": len(result.codes)} and len(result.codes) >= 8
    begun, ended = result.scheduled, result.scheduled + result.latency
    open_calls = [int(((begun <= at) & (ended > at)).sum()) for at in begun]
    assert max(open_calls) <= 4 and 0.5 <= result.seconds < 10
    assert result.ok_per_second == pytest.approx((ended <= 0.5).sum() / 0.5, abs=0.01)


def test_calls_of_the_warm_up_are_left_out(target: Target) -> None:
    result = run_closed(
        target, [b"x"], connections=1, concurrency=2, seconds=0.3, warm_up_seconds=0.3
    )
    assert result.scheduled[0] >= 0 and result.scheduled[-1] <= 0.3
    assert len(result.codes) < result.connection_calls[0]
    assert result.window_seconds == 0.3 and result.seconds >= 0.3


def test_open_loop_begins_calls_at_their_times(target: Target) -> None:
    schedule = poisson_schedule(200, 1.0, seed=3)
    result = run_open(target, [b"x", b"y"], connections=2, schedule=schedule)
    assert result.counts == {"OK": len(schedule)}
    np.testing.assert_array_equal(result.scheduled, schedule)
    assert (result.sent >= schedule).all() and (result.lag >= 0).all()
    assert 0 < np.median(result.lag) < 0.5
    assert 0 <= result.p99_lag_seconds <= result.lag.max()


def test_latency_counts_from_the_scheduled_time_whatever_stalls() -> None:
    # One thread: each call waits for those before it, and none is sent later because of that.
    with _server(threads=1) as (target, _):
        result = run_open(
            target,
            [b"sleep 1"],
            connections=1,
            schedule=constant_schedule(100, 0.05),
            drain_seconds=60,
        )
    assert result.counts == {"OK": 5}
    assert (result.sent - result.scheduled < 3.5).all()
    assert result.latency[-1] > 4.9


def test_a_limit_of_streams_holds_calls_back_and_the_wait_counts() -> None:
    with _server("grpc.max_concurrent_streams=2") as (target, _):
        for _ in range(3):
            result = opened(target, b"sleep 0.5", calls=6)
            # On a busy machine grpcio may still count a call whose end has been seen, and refuse;
            # and the load itself may be late.
            if result.counts == {"OK": 6} and result.lag.max() < 0.9:
                break
    assert result.counts == {"OK": 6}
    # The last two wait for two others each; the waiting is the server's doing, not the load's.
    assert result.lag.max() < 0.9 and result.sent[-1] >= 1.0
    least = np.array([0.5, 0.5, 1.0, 1.0, 1.5, 1.5])
    assert (np.sort(result.latency) >= least).all()


def test_a_deadline_ends_calls_on_time_and_is_told_to_the_server(target: Target) -> None:
    # A busy machine answers the others within it.
    result = opened(target, b"left", b"sleep 6", calls=4, deadline_seconds=3.0)
    assert result.codes.tolist() == [0, 4, 0, 4]
    assert (result.latency[1::2] >= 3.0).all() and (result.latency[1::2] < 6.0).all()
    assert 0 < float(result.responses[0]) <= 3.001
    assert "deadline" in result.errors[4]
    assert opened(target, b"left").responses == {0: b"none"}


def test_the_deadline_holds_while_a_call_waits_for_a_stream() -> None:
    with _server("grpc.max_concurrent_streams=1") as (target, _):
        result = opened(target, b"sleep 2", b"x", calls=2, deadline_seconds=0.2)
    assert result.counts == {"DEADLINE_EXCEEDED": 2}
    assert (result.latency < 1.8).all()


def test_statuses_and_their_first_messages_are_kept(target: Target) -> None:
    full, absent = b"abort 8 the queue is full: 100% \xc3\xa4", b"abort 3 no such input"
    result = opened(target, full, b"ok", absent, calls=6)
    assert result.codes.tolist() == [8, 0, 3, 8, 0, 3]
    assert result.errors == {8: "the queue is full: 100% \u00e4", 3: "no such input"}
    assert result.counts == {"OK": 2, "INVALID_ARGUMENT": 2, "RESOURCE_EXHAUSTED": 2}
    assert result.responses == {1: b"ok"}
    result = opened(target, b"x", keep_responses=False)
    assert result.responses == {} and result.response_bytes.tolist() == [1]


def test_an_unknown_method_is_unimplemented(target: Target) -> None:
    unknown = Target(target.host, target.port, "/no.Such/Method")
    assert opened(unknown, b"x").counts == {"UNIMPLEMENTED": 1}


def test_messages_larger_than_every_window_go_both_ways(target: Target) -> None:
    large = bytes(range(256)) * 4096 * 8
    result = run_closed(
        target, [large, b"big 9000000"], connections=2, concurrency=4, seconds=0.5, drain_seconds=30
    )
    assert result.counts == {"OK": len(result.codes)} and len(result.codes) >= 4
    assert result.responses == {0: large, 1: bytes(9000000)}
    assert result.response_bytes[:2].tolist() == [len(large), 9000000]


def test_unanswered_calls_are_given_up_as_cancelled(target: Target) -> None:
    result = opened(target, b"sleep 4", calls=2, drain_seconds=0.2)
    assert result.counts == {"CANCELLED": 2} and 0.2 <= result.seconds < 3.5
    assert "given up" in result.errors[1]


def test_a_killed_server_is_unavailable_until_it_is_back() -> None:
    with _server() as (target, process):

        def restart() -> None:
            # The load's time: it is killed in the first second, and is away for more than one.
            time.sleep(0.5)
            process.kill()
            process.wait()
            time.sleep(1.5)
            with _server(port=target.port) as _:
                over.wait()

        over = threading.Event()
        thread = threading.Thread(target=restart)
        thread.start()
        try:
            result = run_open(
                target,
                [b"sleep 0.05"],
                connections=2,
                schedule=constant_schedule(100, 14.0),
                drain_seconds=3.0,
            )
        finally:
            over.set()
            thread.join()
    assert set(result.counts) == {"OK", "UNAVAILABLE"}
    failed = result.scheduled[result.codes == 14]
    assert 0.3 < failed[0] < 4.0 and len(failed) > 20
    assert result.latency[result.codes == 14].max() < 4.0
    # Enough for a busy machine to start it again, and for the load to find it.
    assert (result.codes[result.scheduled > 13.5] == 0).all()
    assert (result.reconnects >= 1).all()


def test_nobody_there_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(InputError, match=f"127.0.0.1:{port}: no connection"):
        opened(Target("127.0.0.1", port), b"x")


def test_a_peer_that_speaks_something_else_is_refused() -> None:
    def script(connection: socket.socket, _: int) -> None:
        if connection.recv(100):
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with _peer(script) as target, pytest.raises(InputError, match="no HTTP/2 connection"):
        opened(target, b"x")


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (lambda s: trailers(s, (b":status", b"503")), 14, "HTTP status 503"),
        (lambda s: trailers(s, head=HEAD), 2, "no grpc-status"),
        (lambda s: trailers(s, (b"grpc-status", b"99"), head=HEAD), 2, None),
        (lambda s: trailers(s, OK, head=HEAD), 13, "exactly one"),
        (lambda s: frame(RESET, 0, s, b"\0\0\0\x08"), 1, "HTTP/2 error 8"),
        (lambda s: frame(RESET, 0, s, b"\0\0\0\x0b"), 8, "HTTP/2 error 11"),
        (lambda s: frame(RESET, 0, s, b"\0\0\0\x02"), 13, "HTTP/2 error 2"),
        (lambda s: frame(RESET, 0, s, b"\0\0\0\x07"), 14, "HTTP/2 error 7"),
        (lambda s: b"\xff" * 50, 14, "the connection was lost"),
    ],
)
def test_answers_that_are_none_have_a_status_too(
    answer: Callable[[int], bytes], code: int, text: str | None
) -> None:
    def script(connection: socket.socket, _: int) -> None:
        for stream in asked(connection):
            connection.sendall(answer(stream))

    with _peer(script) as target:
        result = opened(target, b"x", drain_seconds=2)
    assert result.codes.tolist() == [code]
    assert result.errors == ({} if text is None else result.errors)
    assert text is None or text in result.errors[code]


def test_calls_that_a_leaving_server_did_not_take_are_sent_again() -> None:
    seen: list[int] = []

    def script(connection: socket.socket, _: int) -> None:
        for stream in asked(connection):
            seen.append(stream)
            if len(seen) == 3:
                # It took the first two streams, 1 and 3, and answers them.
                connection.sendall(frame(GOAWAY, 0, 0, b"\0\0\0\3" + bytes(4)))
                for taken in (1, 3):
                    answer_call(connection, taken)
                return
            if len(seen) > 3:
                answer_call(connection, stream)

    with _peer(script) as target:
        result = opened(target, b"x", calls=3)
    assert result.counts == {"OK": 3}
    assert seen == [1, 3, 5, 1] and result.reconnects.tolist() == [1]
    assert result.connection_calls.tolist() == [4]


def test_calls_on_a_lost_connection_are_unavailable_and_later_ones_are_not() -> None:
    seen: list[int] = []

    def script(connection: socket.socket, _: int) -> None:
        for stream in asked(connection):
            seen.append(stream)
            if len(seen) == 2:
                return
            if len(seen) > 2:
                answer_call(connection, stream)

    with _peer(script) as target:
        schedule = np.array([0.0, 0.0, 2.0])
        result = run_open(target, [b"x"], connections=1, schedule=schedule)
    assert result.codes.tolist() == [14, 14, 0]
    assert result.latency[:2].max() < 1.8 and "connection was lost" in result.errors[14]


def test_no_scheduled_calls_are_no_calls(target: Target) -> None:
    result = run_open(target, [b"x"], connections=1, schedule=np.empty(0))
    assert result.counts == {} and result.ok_per_second == 0 and result.p99_lag_seconds == 0


def test_schedules_have_their_rate() -> None:
    np.testing.assert_allclose(constant_schedule(4, 1.0), [0, 0.25, 0.5, 0.75])
    times = poisson_schedule(1000, 20.0, seed=1)
    assert abs(len(times) - 20000) < 600 and (np.diff(times) >= 0).all() and times[-1] < 20
    # Of a Poisson process the distances vary as much as they are long.
    assert np.diff(times).std() == pytest.approx(1e-3, rel=0.05)
    np.testing.assert_array_equal(times, poisson_schedule(1000, 20.0, seed=1))


def test_a_process_of_its_own_returns_the_same(target: Target) -> None:
    messages = (b"one", b"abort 5 gone", b"")
    closed = run_in_process(
        partial(run_closed, target, messages, connections=1, concurrency=1, seconds=0.5)
    )
    assert closed.codes[:6].tolist() == [0, 5, 0, 0, 5, 0] and closed.codes.dtype == np.uint8
    assert closed.responses == {0: b"one", 2: b""} and closed.errors == {5: "gone"}
    schedule = constant_schedule(100, 0.05)
    opened = run_in_process(partial(run_open, target, messages, connections=2, schedule=schedule))
    np.testing.assert_array_equal(opened.scheduled, schedule)
    assert opened.counts == {"OK": 3, "NOT_FOUND": 2}


def test_a_process_of_its_own_refuses_as_the_function_does(target: Target) -> None:
    nobody = Target("127.0.0.1", 1)
    load = partial(run_closed, nobody, (b"x",), connections=1, concurrency=1, seconds=1)
    with pytest.raises(InputError, match="no connection"):
        run_in_process(load)


def test_an_interrupt_ends_a_load(target: Target) -> None:
    code = (
        "import signal\n"
        "from serving.bench.load.generator import run_closed\n"
        "from serving.bench.load.target import Target\n"
        # Whoever started the tests may have it ignored, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print(flush=True)\n"
        f"run_closed(Target('127.0.0.1', {target.port}), [b'x'], connections=1, concurrency=1,"
        " seconds=60)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        # Compiled code runs the load by then, and tells nobody.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(55) != 0
        assert "KeyboardInterrupt" in process.stderr.read()
