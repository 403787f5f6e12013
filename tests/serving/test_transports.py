"""What a transport refuses by itself, without the message: a real port, a real client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from serving.batcher import QueueLimits
from serving.config import ServerConfig
from serving.inference import Inference
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.rpc_handlers import INFER_METHOD, INFERENCE_SERVICE, CallCount, HandlerTable
from serving.transport import make_transport
from sharded_infer.repository import Repository
from tests.serving.conftest import MODEL, TRANSPORTS, Ranker, good_inputs, infer_request

GARBAGE = b"\xff" * 100_000
PATIENT = 30.0


@dataclass(slots=True)
class Door:
    """A server whose queue is as long as a test says, and a client.

    Attributes:
        seconds: that a request needs at least.
        asked: seconds left of each call that was looked at unread, and the thread that did.
    """

    inference: Inference
    metrics: Metrics
    channel: grpc.Channel
    seconds: float = 5.0
    asked: list[tuple[float, str]] = field(default_factory=list)

    def is_hopeless(self, time_remaining: float) -> bool:
        self.asked.append((time_remaining, threading.current_thread().name))
        return time_remaining < self.seconds

    def call(self, message: bytes, seconds: float | None) -> grpc.Call:
        return self.channel.unary_unary(INFER_METHOD).future(message, timeout=seconds)

    def unknown(self) -> float:
        """Refusals that are counted for no model."""
        values = [
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "sharded_infer_requests_total"
            and sample.labels["code"] == "DEADLINE_EXCEEDED"
            and sample.labels["model"] != MODEL
        ]
        return sum(values)


@contextmanager
def _door(transport_name: str, ranker: Ranker) -> Iterator[Door]:
    config = ServerConfig(ranker.repository, port=0, transport=transport_name)
    metrics = Metrics()
    store = ModelStore(Repository(ranker.repository), metrics, topology=None, max_batch=256)
    inference = Inference(store, metrics, slots=1, limits=QueueLimits())
    calls = CallCount(lambda _: None)
    handlers = HandlerTable(calls, inference.dispatcher.arrivals)
    handlers.services[INFERENCE_SERVICE] = {}
    handlers.set_infer(inference)
    transport = make_transport(config, inference=inference, handlers=handlers, calls=calls)
    port = transport.listen(0)
    store.load(MODEL)
    transport.warm(store.warm_up)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Door(inference, metrics, channel)
    finally:
        transport.stop(5.0)


@pytest.fixture(params=TRANSPORTS)
def door(
    request: pytest.FixtureRequest, ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Door]:
    with _door(request.param, ranker) as door:
        monkeypatch.setattr(door.inference.dispatcher, "is_hopeless", door.is_hopeless)
        yield door


def test_a_hopeless_call_is_refused_and_counted_without_its_message(door: Door) -> None:
    call = door.call(GARBAGE, 3.0)
    assert call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "more waits than can be answered" in call.details()
    assert door.unknown() == 1.0
    [(seconds, thread)] = door.asked
    assert 2.0 < seconds <= 3.0
    assert not thread.startswith("rpc"), "decided before a thread has it"


def test_a_call_that_may_be_answered_is_read(door: Door) -> None:
    message = infer_request(good_inputs(3)).SerializeToString()
    assert door.call(message, PATIENT).code() is grpc.StatusCode.OK
    assert door.call(GARBAGE, PATIENT).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert door.unknown() == 0.0 and len(door.asked) == 2


def test_a_call_without_a_deadline_is_never_hopeless(door: Door) -> None:
    door.seconds = 1e9
    message = infer_request(good_inputs(3)).SerializeToString()
    assert door.call(message, None).code() is grpc.StatusCode.OK
    assert door.unknown() == 0.0


def test_the_server_answers_on_after_many_hopeless_calls(door: Door) -> None:
    message = infer_request(good_inputs(3)).SerializeToString()
    calls = [door.call(message, 3.0 if n % 4 else PATIENT) for n in range(100)]
    codes = [call.code() for call in calls]
    assert codes == [
        grpc.StatusCode.DEADLINE_EXCEEDED if n % 4 else grpc.StatusCode.OK for n in range(100)
    ]


def test_a_bug_at_the_door_does_not_end_the_server(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(_: float) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(door.inference.dispatcher, "is_hopeless", stumble)
    message = infer_request(good_inputs(3)).SerializeToString()
    door.call(message, PATIENT).code()
    monkeypatch.undo()
    assert door.call(message, PATIENT).code() is grpc.StatusCode.OK
    assert "internal error" in caplog.text or "RuntimeError" in caplog.text
