from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from serving.transport.events import EventReader
from serving.transport.http2_server import Http2Server
from tests.support.silent_server import silent_server
from tests.support.waiting import until

PATH = "/test/Call"
WORDS = "the deadline cannot be met: more waits than can be answered"
MANY, FEW = 200, 50
Ask = Any  # a grpc.UnaryUnaryMultiCallable


@pytest.fixture
def silent() -> Iterator[tuple[Http2Server, Ask]]:
    with silent_server(PATH) as (server, address), grpc.insecure_channel(address) as channel:
        yield server, channel.unary_unary(PATH)


def is_refused(call: Ask, seconds: float, patience: float = 60.0) -> bool:
    """True if the server refuses a call within its time and ours; other calls stay unanswered."""
    asked = call.future(b"", timeout=seconds)
    try:
        asked.result(timeout=patience)
    except grpc.FutureTimeoutError:
        asked.cancel()
    except grpc.RpcError as error:
        return bool(error.details() == WORDS)
    return False


def hold(server: Http2Server, call: Ask, count: int, seconds: float) -> list[object]:
    """Makes the server accept calls that stay unanswered."""
    calls = [call.future(b"", timeout=seconds) for _ in range(count)]
    reader, taken = EventReader(server.fetch), 0
    while taken < count:
        taken += len(reader.fetch(60_000) or ())
    return calls


def test_calls_count_that_came_since_the_scheduler_was_asked(
    silent: tuple[Http2Server, Ask],
) -> None:
    server, call = silent
    calls = hold(server, call, MANY, 60.0)
    # The scheduler has said nothing. No call was answered in a second.
    until(lambda: is_refused(call, 1.9), "calls are refused that would wait for others")
    assert not is_refused(call, 0.5), "those with longer timeouts are answered later"
    assert not is_refused(call, 30.0, patience=1.0), "those with time are left to the scheduler"
    server.set_urgent_lead(1.0)
    assert not is_refused(call, 1.9), "an urgent call goes before the others"
    server.set_urgent_lead(0.0)
    until(lambda: is_refused(call, 1.9), "nothing is urgent any more")
    assert len(calls) == MANY


def test_few_calls_make_no_other_late(silent: tuple[Http2Server, Ask]) -> None:
    server, call = silent
    calls = hold(server, call, FEW, 60.0)
    for _ in range(8):
        assert not is_refused(call, 0.3)
    server.set_backlog(50.0)
    assert is_refused(call, 40.0)
    assert len(calls) == FEW


def test_calls_that_the_scheduler_did_not_know_count_like_others_up_to_half_of_a_deadline(
    silent: tuple[Http2Server, Ask],
) -> None:
    server, call = silent
    calls = hold(server, call, FEW // 2, 60.0)
    server.set_backlog(10.0)
    assert not is_refused(call, 14.0, patience=1.0)
    # Each takes a 25th of the backlog.
    calls += [call.future(b"", timeout=60.0) for _ in range(FEW // 2)]
    until(lambda: is_refused(call, 14.0), "calls count that nobody has fetched")
    assert not is_refused(call, 24.0, patience=1.0)
    reader = EventReader(server.fetch)
    while reader.fetch(0):
        pass
    server.set_backlog(10.0)
    assert not is_refused(call, 14.0, patience=1.0), "the scheduler knows them"
