"""What a transport refuses by itself, without the message: a real port, a real client."""

from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.native_transport import NativeTransport
from serving.grpc_api.handlers import INFER_METHOD, INFERENCE_SERVICE, HandlerTable
from serving.inference.data_plane import DataPlane
from serving.metrics.server_metrics import ServerMetrics
from serving.scheduler.scheduler import QueueLimits
from serving.versions.served_versions import ServedVersions
from sharded_infer.repositories.repository import Repository
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request
from tests.support.waiting import until

GARBAGE = b"\xff" * 100_000
PATIENT = 30.0
_REFUSED = grpc.StatusCode.DEADLINE_EXCEEDED


@dataclass(slots=True)
class GrpcAdmission:
    """A server whose requests need as many seconds as a test says, and a client."""

    data_plane: DataPlane
    metrics: ServerMetrics
    channel: grpc.Channel

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

    def takes(self, seconds: float) -> None:
        """Makes every request take at least so long; one shorter call is refused."""
        self.data_plane.backlog = lambda: seconds
        # A thread tells the I/O thread after a step, maybe later than it answered that step's call.
        until(lambda: self.call(GARBAGE, seconds / 2).code() is _REFUSED, "calls are refused")
        until(lambda: self.unknown() == 1.0, "the refusal is counted")


@pytest.fixture
def admission(ranker: Ranker) -> Iterator[GrpcAdmission]:
    config = ServerConfig(ranker.repository, port=0)
    metrics = ServerMetrics()
    store = ServedVersions(Repository(ranker.repository), metrics, topology=None, max_batch=256)
    data_plane = DataPlane(store, metrics, slots=1, limits=QueueLimits())
    handlers = HandlerTable(data_plane)
    handlers.services[INFERENCE_SERVICE] = {}
    handlers.add_predict_methods()
    transport = NativeTransport(config, data_plane, handlers)
    port = transport.listen(0)
    store.load(MODEL)
    transport.warm(store.warm_up)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            admission = GrpcAdmission(data_plane, metrics, channel)
            admission.takes(5.0)
            yield admission
    finally:
        transport.stop(5.0)


def test_a_hopeless_call_is_refused_and_counted_without_its_message(
    admission: GrpcAdmission,
) -> None:
    call = admission.call(GARBAGE, 3.0)
    assert call.code() is _REFUSED
    assert "more waits than can be answered" in call.details()
    until(lambda: admission.unknown() == 2.0, "it is counted")


def test_a_call_that_may_be_answered_is_read(admission: GrpcAdmission) -> None:
    message = infer_request(good_inputs(3)).SerializeToString()
    assert admission.call(message, PATIENT).code() is grpc.StatusCode.OK
    assert admission.call(GARBAGE, PATIENT).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert admission.unknown() == 1.0


def test_a_bug_at_the_admission_does_not_end_the_server(
    admission: GrpcAdmission, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(*_: float) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(admission.data_plane, "backlog", stumble)
    message = infer_request(good_inputs(3)).SerializeToString()
    admission.call(message, PATIENT).code()
    monkeypatch.undo()
    assert admission.call(message, PATIENT).code() is grpc.StatusCode.OK
    assert "internal error" in caplog.text or "RuntimeError" in caplog.text
