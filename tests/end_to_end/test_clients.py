"""Clients that vanish, give up, read slowly, are in a hurry, or come when there is no room."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from serving.grpc_api.handlers import INFER_METHOD
from serving.grpc_api.status_codes import PUSHBACK
from tests.attacks import raw_http2
from tests.support.server_pages import samples
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    publish_ranker,
    running_server,
    scores_of,
)
from tests.support.waiting import until

OK = grpc.StatusCode.OK
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
QUEUE_LIMIT = 8
# The server's program: requests for the model "slow" hold their slot while the file `hold` is
# there; the file `runs` tells that one does.
HOLDS = """
import os
import time
import serving.inference.batch_execution
import serving.cli

run = serving.inference.batch_execution.run_batch

def hold(model, *arguments, **named):
    if model.spec.name == "slow":
        open("{runs}", "w").close()
        while os.path.exists("{hold}"):
            time.sleep(0.005)
    return run(model, *arguments, **named)

serving.inference.batch_execution.run_batch = hold
serving.cli.main()
"""


@dataclass(frozen=True, slots=True)
class Slow:
    """What is served, the ranker and a model that holds its slot, and how it is released."""

    repository: Path
    hold: Path
    runs: Path

    @property
    def program(self) -> str:
        return HOLDS.format(hold=self.hold, runs=self.runs)


@pytest.fixture(scope="module")
def slow(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Slow:
    folder = tmp_path_factory.mktemp("models")
    repository = folder / "repository"
    shutil.copytree(ranker.repository, repository)
    publish_ranker(repository, name="slow")
    return Slow(repository, folder / "hold", folder / "runs")


@pytest.fixture(scope="module")
def narrow(slow: Slow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One slot, and room for a few requests that wait for it."""
    log = tmp_path_factory.mktemp("narrow") / "stderr"
    options = ("--slots", 1, "--max-queue-requests", QUEUE_LIMIT)
    with running_server(slow.repository, log, *options, program=slow.program) as server:
        yield server
    assert "internal error" not in log.read_text()


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server has counted of one model, and what it is doing now."""

    ran: float
    refused: dict[str, float]
    in_flight: float
    queued: float


def counts(server: RunningServer, model: str = MODEL) -> Counts:
    values = {
        (name, *(value for label, value in pairs if label == "reason")): value
        for (name, pairs), value in samples(server.metrics_url).items()
        if ("model", model) in pairs or not pairs
    }
    reasons = ("queue_full", "deadline", "cancelled", "expired")
    return Counts(
        ran=values["sharded_infer_batch_requests_sum",],
        refused={r: values["sharded_infer_requests_refused_total", r] for r in reasons},
        in_flight=values["sharded_infer_requests_in_flight",],
        queued=values["sharded_infer_queue_requests",],
    )


def grown(server: RunningServer, before: Counts) -> dict[str, float]:
    """What has come on top, without zeros: `ran` and the reasons of refusals."""
    now = counts(server)
    more = {reason: now.refused[reason] - before.refused[reason] for reason in now.refused}
    return {what: n for what, n in {"ran": now.ran - before.ran, **more}.items() if n}


def quiet(server: RunningServer) -> None:
    """Waits until nothing is in flight."""
    until(lambda: counts(server).in_flight == 0, "nothing is in flight")


class SlowCall:
    """A call that holds the only slot, from the entry to `finish` or the exit."""

    def __init__(self, server: RunningServer, slow: Slow) -> None:
        self._server, self._slow = server, slow
        self._stack = ExitStack()
        self._call: Any = None

    def __enter__(self) -> "SlowCall":
        quiet(self._server)
        self._slow.runs.unlink(missing_ok=True)
        self._slow.hold.touch()
        stub = self._stack.enter_context(self._server.stub())
        request = infer_request(good_inputs(1), model="slow")
        self._call = stub.ModelInfer.future(request, timeout=60)
        until(self._slow.runs.exists, "the slow call runs")
        return self

    def done(self) -> bool:
        return bool(self._call.done())

    def finish(self) -> grpc.StatusCode:
        """Lets it go; what it ends with."""
        self._slow.hold.unlink(missing_ok=True)
        code: grpc.StatusCode = self._call.code()
        return code

    def __exit__(self, *raised: object) -> None:
        self._slow.hold.unlink(missing_ok=True)
        self._stack.close()


def answers(server: RunningServer) -> bool:
    with server.stub() as stub:
        answer = stub.ModelInfer(infer_request(good_inputs(2)), timeout=30)
    return bool(answer.model_name == MODEL)


class BareConnection:
    """A gRPC client that does as it likes: it can stop in the middle, and need not read."""

    def __init__(self, server: RunningServer, *, window: int = 65535) -> None:
        opening = raw_http2.PREFACE + raw_http2.setting(raw_http2.INITIAL_WINDOW, window)
        self._socket = raw_http2.connect(server.grpc_url, opening=opening)
        self._frames = raw_http2.frames(self._socket, credit=False)
        self._read_on_to(raw_http2.SETTINGS)
        self._stream = -1

    def __enter__(self) -> "BareConnection":
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def call(self, message: bytes, *, share: float = 1.0) -> None:
        """Sends a request, or the first part of one; nothing is read."""
        self._stream += 2
        headers = raw_http2.block(INFER_METHOD.encode())
        framed = raw_http2.message(message)
        part = framed[: int(len(framed) * share)]
        end = raw_http2.END_STREAM if part == framed else 0
        self._socket.sendall(
            raw_http2.frame(raw_http2.HEADERS, raw_http2.END_HEADERS, self._stream, headers)
            + raw_http2.frame(raw_http2.DATA, end, self._stream, part)
        )

    def headers_of_next_answer(self) -> None:
        """Reads on until a response begins."""
        self._read_on_to(raw_http2.HEADERS)

    def _read_on_to(self, kind: int) -> None:
        assert any(one.kind == kind for one in self._frames), "the server closed the connection"


def small_message() -> bytes:
    data: bytes = infer_request(good_inputs(2)).SerializeToString()
    return data


def test_clients_that_vanish_in_the_middle_of_a_request_leave_nothing_behind(
    narrow: RunningServer,
) -> None:
    quiet(narrow)
    before = counts(narrow)
    with ExitStack() as stack:
        # More than there are threads: those that are silent must not be in the way once gone.
        for share in np.linspace(0.0, 0.99, 50):
            connection = stack.enter_context(BareConnection(narrow))
            connection.call(small_message(), share=float(share))
    assert answers(narrow)
    quiet(narrow)
    assert grown(narrow, before) == {"ran": 1}


def test_cancelled_requests_leave_the_queue_without_being_run(
    narrow: RunningServer, slow: Slow
) -> None:
    count = 5
    with SlowCall(narrow, slow) as held, narrow.stub() as stub:
        before = counts(narrow)
        waiting = [stub.ModelInfer.future(infer_request(good_inputs(2))) for _ in range(count)]
        until(lambda: counts(narrow).queued == count, "all have come")
        for call in waiting:
            call.cancel()
        until(lambda: counts(narrow).in_flight == 1, "all have gone")
        assert not held.done()
        assert held.finish() is OK
        assert grown(narrow, before) == {"cancelled": count}
    assert answers(narrow)


def test_clients_that_read_nothing_do_not_hold_up_others(narrow: RunningServer) -> None:
    quiet(narrow)
    before = counts(narrow)
    with ExitStack() as stack:
        # Together more than there are threads, and no answer of them can be sent.
        for _ in range(4):
            connection = stack.enter_context(BareConnection(narrow, window=0))
            for _ in range(15):
                connection.call(small_message())
                connection.headers_of_next_answer()
        assert grown(narrow, before) == {"ran": 60}
        for _ in range(50):
            assert answers(narrow)
    quiet(narrow)


def test_a_full_queue_refuses_and_says_when_to_come_again(
    narrow: RunningServer, slow: Slow
) -> None:
    request = infer_request(good_inputs(2))
    with SlowCall(narrow, slow) as held, narrow.stub() as stub:
        before = counts(narrow)
        waiting = [stub.ModelInfer.future(request, timeout=60) for _ in range(QUEUE_LIMIT)]
        until(lambda: counts(narrow).queued == QUEUE_LIMIT, "the queue is full")
        refused = [stub.ModelInfer.future(request, timeout=60) for _ in range(3)]
        for call in refused:
            assert call.code() is RESOURCE_EXHAUSTED
            assert f"at most {QUEUE_LIMIT} may; retry in " in call.details()
            metadata = dict(call.trailing_metadata())
            assert int(metadata[PUSHBACK]) >= 1
        assert not held.done()
        assert held.finish() is OK
        assert [call.code() for call in waiting] == [OK] * QUEUE_LIMIT
    assert grown(narrow, before) == {"ran": QUEUE_LIMIT, "queue_full": 3}


def test_requests_in_flight_at_sigterm_are_finished_and_their_answers_arrive(
    slow: Slow, ranker: Ranker, tmp_path: Path
) -> None:
    options = ("--slots", 1)
    log = tmp_path / "stderr"
    inputs = good_inputs(20_000)
    large, expected = infer_request(inputs), ranker.predict(inputs)["score"]
    with (
        running_server(slow.repository, log, *options, program=slow.program) as server,
        server.stub() as stub,
        SlowCall(server, slow) as held,
    ):
        # Answers of 320 kB each, which are sent one on another once the slow one is done.
        calls = [stub.ModelInfer.future(large, timeout=60) for _ in range(4)]
        until(lambda: counts(server).in_flight == 5, "all have come")
        server.process.send_signal(signal.SIGTERM)
        assert held.finish() is OK
        for call in calls:
            assert call.code() is OK, call.details()
            np.testing.assert_allclose(scores_of(call.result())["score"], expected, atol=1e-5)
        assert server.process.wait(30) == 0
