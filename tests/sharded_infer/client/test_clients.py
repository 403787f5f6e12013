"""The sync and the async client behave alike: deadlines, retries, budgets, hedging, errors."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest

from sharded_infer.client import (
    AsyncClient,
    CallSettings,
    Client,
    PredictError,
    Prediction,
    RetryPolicy,
)
from sharded_infer.errors import RequestError
from sharded_infer.v1 import predictor_pb2, predictor_pb2_grpc

Answer = Callable[[int, grpc.ServicerContext], None]


@dataclass
class ScriptedServer(predictor_pb2_grpc.PredictorServicer):
    """Counts its calls, and answers each with its number unless the script aborts it."""

    answer: Answer
    target: str = ""
    calls: int = 0
    metadata: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def Predict(  # noqa: N802 - the protocol's name
        self, request: predictor_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predictor_pb2.PredictResponse:
        with self.lock:
            self.calls += 1
            number = self.calls
            self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        self.answer(number, context)
        return predictor_pb2.PredictResponse(
            model=request.model,
            version=number,
            request_id=request.request_id,
            outputs=[
                predictor_pb2.Output(name="score", values=[0.25, 0.5]),
                predictor_pb2.Output(name="classes", values=[1, 2, 3, 4], width=2),
            ],
            timing=predictor_pb2.Timing(queue_seconds=0.5),
        )


@contextmanager
def scripted_server(answer: Answer = lambda number, context: None) -> Iterator[ScriptedServer]:
    server = grpc.server(ThreadPoolExecutor(8))
    servicer = ScriptedServer(answer)
    predictor_pb2_grpc.add_PredictorServicer_to_server(servicer, server)
    servicer.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()


Predict = Callable[..., Prediction]
QUICK = RetryPolicy(first_backoff_seconds=0.01, longest_backoff_seconds=0.02)


def sync_predict(target: str, settings: CallSettings, **fields: Any) -> Prediction:
    with Client(target, settings) as client:
        return client.predict("m", **fields)


def async_predict(target: str, settings: CallSettings, **fields: Any) -> Prediction:
    async def run() -> Prediction:
        async with AsyncClient(target, settings) as client:
            return await client.predict("m", **fields)

    return asyncio.run(run())


@pytest.fixture(params=[sync_predict, async_predict])
def predict(request: pytest.FixtureRequest) -> Predict:
    chosen: Predict = request.param
    return chosen


def fail(times: int, code: grpc.StatusCode) -> Answer:
    def answer(number: int, context: grpc.ServicerContext) -> None:
        if number <= times:
            context.abort(code, f"call {number}")

    return answer


def test_an_answer_holds_scores_timing_and_the_version(predict: Predict) -> None:
    with scripted_server() as server:
        found = predict(server.target, CallSettings(), request_id="r", candidates={"item": [1, 2]})
    assert (found.model, found.version, found.request_id) == ("m", 1, "r")
    np.testing.assert_array_equal(found.scores["score"], np.array([0.25, 0.5], np.float32))
    np.testing.assert_array_equal(found.scores["classes"], np.float32([[1, 2], [3, 4]]))
    assert found.timing.queue_seconds == 0.5


def test_a_call_is_made_again_while_the_server_says_unavailable(predict: Predict) -> None:
    with scripted_server(fail(2, grpc.StatusCode.UNAVAILABLE)) as server:
        assert predict(server.target, CallSettings(retry=QUICK)).version == 3


def test_the_last_attempt_says_why(predict: Predict) -> None:
    with scripted_server(fail(9, grpc.StatusCode.UNAVAILABLE)) as server:
        with pytest.raises(PredictError, match="UNAVAILABLE: call 3") as raised:
            predict(server.target, CallSettings(retry=QUICK))
        assert server.calls == 3
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE and raised.value.details == "call 3"


@pytest.mark.parametrize(
    "name", ["INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "INTERNAL"]
)
def test_other_errors_are_told_at_once(predict: Predict, name: str) -> None:
    code = grpc.StatusCode[name]
    with scripted_server(fail(9, code)) as server:
        with pytest.raises(PredictError, match=f"{code.name}: call 1"):
            predict(server.target, CallSettings(retry=QUICK))
        assert server.calls == 1


def test_the_budget_ends_retries_when_most_calls_fail() -> None:
    broken = fail(10**6, grpc.StatusCode.UNAVAILABLE)
    with (
        scripted_server(broken) as server,
        Client(server.target, CallSettings(retry=QUICK)) as client,
    ):
        for _ in range(50):
            with pytest.raises(PredictError):
                client.predict("m")
    # 10 tokens: five failed attempts leave half, and then each call is tried once.
    assert 50 < server.calls <= 50 + 5


def test_a_deadline_ends_a_call_that_hangs(predict: Predict) -> None:
    end = threading.Event()
    with scripted_server(lambda number, context: bool(end.wait(20))) as server:
        with pytest.raises(PredictError, match="DEADLINE_EXCEEDED"):
            predict(server.target, CallSettings(timeout_seconds=30), timeout_seconds=0.2)
        end.set()


def test_nobody_listening_is_unavailable(predict: Predict) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PredictError) as raised:
        predict(f"127.0.0.1:{port}", CallSettings(retry=QUICK, timeout_seconds=30))
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE


def test_a_call_that_takes_long_is_hedged(predict: Predict) -> None:
    end = threading.Event()

    def answer(number: int, context: grpc.ServicerContext) -> None:
        if number == 1:
            end.wait(20)

    with scripted_server(answer) as server:
        found = predict(server.target, CallSettings(timeout_seconds=30, hedge_after_seconds=0.05))
        assert found.version == 2
        end.set()


def test_a_quick_call_is_not_hedged(predict: Predict) -> None:
    with scripted_server() as server:
        settings = CallSettings(hedge_after_seconds=20, timeout_seconds=30)
        assert predict(server.target, settings).version == server.calls == 1


def test_the_first_answer_counts_if_the_second_call_fails(predict: Predict) -> None:
    second = threading.Event()

    def answer(number: int, context: grpc.ServicerContext) -> None:
        if number == 1:
            second.wait(20)
        else:
            second.set()
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the second")

    with scripted_server(answer) as server:
        settings = CallSettings(timeout_seconds=30, hedge_after_seconds=0.05)
        assert predict(server.target, settings).version == 1


def test_a_token_is_sent(predict: Predict) -> None:
    with scripted_server() as server:
        predict(server.target, CallSettings(token="secret"))  # noqa: S106
    assert server.metadata[0]["authorization"] == "Bearer secret"


def test_an_input_that_cannot_be_sent_reaches_no_server(predict: Predict) -> None:
    with scripted_server() as server, pytest.raises(RequestError, match="'item'"):
        predict(server.target, CallSettings(), candidates={"item": [True]})
    assert server.calls == 0
