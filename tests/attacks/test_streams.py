"""Streams that flood, stall, break off or hold nonsense: bounded, and nobody else suffers."""

import queue
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.attacks.conftest import attacked_server
from tests.support.server_pages import counted
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
    scores_of,
)
from tests.support.waiting import until

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
IN_FLIGHT = "sharded_infer_requests_in_flight"
MOST_STREAMS, MOST_REQUESTS = 3, 8


class Sender:
    """Requests of a stream, as a test sends them; iterated by the client."""

    def __init__(self, *requests: Any) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        for request in requests:
            self._requests.put(request)

    def send(self, request: Any) -> None:
        self._requests.put(request)

    def close(self) -> None:
        self._requests.put(None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests.get, None)


@pytest.fixture(scope="module")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("streams") / "stderr"
    limits = ("--max-streams", MOST_STREAMS, "--max-stream-requests", MOST_REQUESTS)
    with attacked_server(ranker.repository, log, *limits) as server:
        yield server


@pytest.fixture
def stub(server: RunningServer, ranker: Ranker) -> Iterator[Any]:
    """Of the server, which answers others afterwards too."""
    with server.stub() as stub:
        yield stub
        check_alive(stub, ranker)
    until(lambda: counted(server, IN_FLIGHT) == 0, "nothing is left in flight")


def large(number: int = 0) -> Any:
    return infer_request(good_inputs(512, seed=number), request_id=str(number))


def check_alive(stub: Any, ranker: Ranker) -> None:
    inputs = good_inputs(3)
    scores = scores_of(stub.ModelInfer(infer_request(inputs), timeout=10))
    assert np.array_equal(scores["score"], ranker.predict(inputs)["score"])


def opens(stub: Any) -> bool:
    try:
        return not next(stub.ModelStreamInfer(iter([large()]), timeout=60)).error_message
    except grpc.RpcError:
        return False


def test_who_does_not_read_is_not_read(stub: Any, server: RunningServer, ranker: Ranker) -> None:
    total = 2000
    before = counted(server, "sharded_infer_requests_total")
    calls = stub.ModelStreamInfer((large(n) for n in range(total)), timeout=120)
    answered = [-1.0]

    def stands_still() -> bool:
        # Two looks that far apart find the same number.
        time.sleep(0.3)
        answered.append(counted(server, "sharded_infer_requests_total") - before)
        return answered[-1] == answered[-2]

    until(stands_still, "the stream stands still")
    assert answered[-1] < total, "all were answered: the client was not slow enough"
    assert counted(server, IN_FLIGHT) <= MOST_REQUESTS + 1
    check_alive(stub, ranker)
    ids = sorted(int(response.infer_response.id) for response in calls)
    assert ids == list(range(total))


@pytest.mark.usefixtures("stub")
def test_a_client_that_goes_away_leaves_nothing_behind(server: RunningServer) -> None:
    for ending in ("cancel", "close"):
        with server.stub() as other:
            calls = other.ModelStreamInfer((large(n) for n in range(500)), timeout=60)
            assert not next(calls).error_message
            if ending == "cancel":
                calls.cancel()
        until(lambda: counted(server, IN_FLIGHT) == 0, "all is given up")


def test_only_so_many_streams_are_open(stub: Any, ranker: Ranker) -> None:
    senders = [Sender(large(n)) for n in range(MOST_STREAMS)]
    open_ones = [stub.ModelStreamInfer(iter(sender), timeout=60) for sender in senders]
    for calls in open_ones:
        assert not next(calls).error_message
    for _ in range(20):
        calls = stub.ModelStreamInfer(iter([large()]), timeout=10)
        with pytest.raises(grpc.RpcError) as refused:
            next(calls)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MOST_STREAMS) in refused.value.details()
    check_alive(stub, ranker)
    for sender, calls in zip(senders, open_ones, strict=True):
        sender.close()
        assert list(calls) == []
    until(lambda: opens(stub), "a stream can be opened again")


def test_silent_streams_give_way_when_all_are_taken(server: RunningServer, stub: Any) -> None:
    busy = Sender()
    answers = stub.ModelStreamInfer(iter(busy), timeout=120)
    silent = [stub.ModelStreamInfer(iter(Sender()), timeout=120) for _ in range(MOST_STREAMS - 1)]

    def one_more_opens() -> bool:
        busy.send(large())
        assert not next(answers).error_message, "a stream with requests goes on"
        return opens(stub)

    until(lambda: not one_more_opens(), "all streams are taken")
    until(one_more_opens, "a silent stream gives way")
    until(lambda: any(one.done() for one in silent), "its client is told")
    (ended,) = (one for one in silent if one.done())
    assert ended.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "no request" in ended.details()
    dropped = "sharded_infer_grpc_dropped_total"
    until(lambda: counted(server, dropped, reason="silent") == 1, "it is counted")
    busy.close()
    assert list(answers) == []
    for one in silent:
        one.cancel()


@pytest.mark.usefixtures("stub")
def test_a_message_that_is_none_is_answered_and_the_stream_goes_on(server: RunningServer) -> None:
    good = large(7).SerializeToString()
    messages = [b"\xff" * 50, good, b"", good[:-9], b"\x2a\x80\x80\x80\x80\x08", good]
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.stream_stream(
            STREAM, response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )
        answers = list(call(iter(messages), timeout=30))
    assert len(answers) == len(messages)
    right = [a.infer_response.id for a in answers if not a.error_message]
    assert right == ["7", "7"]
    assert all(a.infer_response.parameters["triton_final_response"].bool_param for a in answers)


def test_a_stream_ends_at_a_large_message_or_at_the_first_error_if_asked_to(stub: Any) -> None:
    huge = infer_request({"dense": np.zeros((5_000_000, 4), np.float32)})
    unknown = infer_request(good_inputs(1), model="nobody")
    at_first = (("triton_grpc_error", "true"),)
    for request, metadata, code in (
        (huge, (), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (unknown, at_first, grpc.StatusCode.NOT_FOUND),
    ):
        calls = stub.ModelStreamInfer(iter([request, large()]), timeout=30, metadata=metadata)
        with pytest.raises(grpc.RpcError) as refused:
            list(calls)
        assert refused.value.code() is code


def test_a_request_of_a_stream_that_cannot_be_in_time_is_refused(stub: Any) -> None:
    late = large(1)
    late.parameters["timeout"].int64_param = 1
    answers = list(stub.ModelStreamInfer(iter([late, large(2)]), timeout=30))
    words = {a.infer_response.id: a.error_message for a in answers}
    assert "deadline" in words["1"] and words["2"] == ""


def test_streams_share_the_limit_of_requests_in_progress(ranker: Ranker, tmp_path: Path) -> None:
    limits = ("--max-concurrent-requests", 4)
    with (
        running_server(ranker.repository, tmp_path / "log", *limits) as server,
        server.stub() as stub,
    ):
        answers = list(stub.ModelStreamInfer((large(n) for n in range(300)), timeout=60))
        assert len(answers) == 300
        words = {a.error_message for a in answers}
        assert "" in words
        assert all("in progress: 4 requests" in word for word in words - {""})


def test_a_server_that_ends_answers_what_came_and_says_why(ranker: Ranker, tmp_path: Path) -> None:
    options = ("--drain-seconds", 600)
    with (
        running_server(ranker.repository, tmp_path / "log", *options) as server,
        server.stub() as stub,
    ):
        sender = Sender(*(large(n) for n in range(40)))
        calls = stub.ModelStreamInfer(iter(sender), timeout=60)
        answers = [next(calls)]
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as ended:
            answers.extend(calls)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "draining" in ended.value.details()
        # Long before the drain's time is over.
        assert server.process.wait(60) == 0
        assert len({a.infer_response.id for a in answers}) == len(answers)
        sender.close()
    assert MODEL in {a.infer_response.model_name for a in answers}
    assert threading.active_count() < 50
