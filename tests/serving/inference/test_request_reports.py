from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from serving.inference.data_plane import DataPlane
from serving.inference.request_reports import RequestReports, slow_after
from serving.metrics.server_metrics import ServerMetrics, VersionMetrics
from serving.observability.request_timeline import RequestTimeline
from serving.observability.trace_settings import TraceSampling
from serving.observability.tracer import Tracer
from serving.scheduler.batcher import QueueLimits
from serving.scheduler.queued_request import BatchingMode
from serving.status import Status, StatusCode
from serving.versions.loaded_version import ServingOverrides
from serving.versions.served_versions import ServedVersions
from sharded_infer.repositories.repository import Repository
from tests.support.asking import ask
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PARENT = (("traceparent", f"00-{TRACE:032x}-00f067aa0ba902b7-01"),)
ALWAYS, NEVER = 1e-6, 0.0


@dataclass(slots=True)
class Told:
    data_plane: DataPlane
    sent: list[RequestTimeline]
    tracer: Tracer | None
    exemplars: list[bytes] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)

    def ask(self, message: bytes) -> bytes | Status:
        metadata = PARENT if self.data_plane.traces else ()
        return ask(self.data_plane, message, metadata=metadata)

    def timelines(self) -> list[RequestTimeline]:
        if self.tracer is not None:
            self.tracer.stop()
        return self.sent


@pytest.fixture(scope="module")
def loaded(ranker: Ranker) -> tuple[ServedVersions, ServerMetrics]:
    metrics = ServerMetrics()
    overrides = ServingOverrides(BatchingMode.INLINE, 0)
    store = ServedVersions(
        Repository(ranker.repository), metrics, topology=None, max_batch=256, overrides=overrides
    )
    store.load(MODEL)
    return store, metrics


def data_plane_of(
    loaded: tuple[ServedVersions, ServerMetrics], reports: RequestReports | None = None
) -> DataPlane:
    data_plane = DataPlane(*loaded, slots=1, limits=QueueLimits(), reports=reports)
    data_plane.dispatcher.add_queue(loaded[0].get(MODEL, "").queue)
    return data_plane


@pytest.fixture
def told(
    request: pytest.FixtureRequest,
    loaded: tuple[ServedVersions, ServerMetrics],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Told]:
    traces, slow_ms = request.param
    sent: list[RequestTimeline] = []

    def send(requests: Sequence[RequestTimeline]) -> bool:
        sent.extend(requests)
        return True

    tracer = None
    if traces:
        tracer = Tracer(TraceSampling(0.0), send, period_seconds=3600.0)
    made = Told(data_plane_of(loaded, RequestReports(tracer, slow_ms)), sent, tracer)

    def exemplar(_: VersionMetrics, seconds: float, trace_id: bytes) -> None:
        made.exemplars.append(trace_id)

    monkeypatch.setattr(VersionMetrics, "exemplar", exemplar)
    monkeypatch.setattr(VersionMetrics, "slow", lambda _, phase: made.slow.append(phase))
    yield made
    made.timelines()


def message(samples: int = 2, **changes: str) -> bytes:
    data: bytes = infer_request(good_inputs(samples), **changes).SerializeToString()
    return data


@pytest.mark.parametrize("told", [(True, NEVER)], indirect=True)
def test_a_traced_request_is_told_once_with_all_that_is_known(told: Told) -> None:
    assert isinstance(told.ask(message(3, request_id="a" * 500)), bytes)
    (timeline,) = told.timelines()
    assert (timeline.model, timeline.version, timeline.samples) == (MODEL, 1, 3)
    assert timeline.request_id == "a" * 128 + "…"
    assert timeline.trace is not None and timeline.trace.trace_id == TRACE
    assert timeline.batch is not None and timeline.batch.requests == 1
    assert timeline.batch.usage.wall_seconds >= timeline.run_seconds > 0.0
    assert told.exemplars == [TRACE.to_bytes(16, "big")] and told.slow == []


@pytest.mark.parametrize("told", [(True, NEVER)], indirect=True)
def test_requests_that_fail_are_traced_as_far_as_they_came(told: Told) -> None:
    wrong = infer_request(good_inputs(2))
    wrong.inputs[0].name = "nothing"
    for asked in (b"\xff", message(model="nobody"), wrong.SerializeToString()):
        assert isinstance(told.ask(asked), Status)
    codes = [(t.code, t.model) for t in told.timelines()]
    assert codes == [("INVALID_ARGUMENT", ""), ("NOT_FOUND", ""), ("INVALID_ARGUMENT", MODEL)]
    assert all(t.error and t.batch is None and t.samples == 0 for t in told.sent)
    assert told.exemplars == []


@pytest.mark.parametrize("told", [(True, NEVER)], indirect=True)
def test_a_request_that_is_refused_at_the_queue_is_traced(told: Told) -> None:
    asked = infer_request(good_inputs(2))
    asked.parameters["timeout"].int64_param = 1
    refusal = told.ask(asked.SerializeToString())
    assert isinstance(refusal, Status)
    assert refusal.code is StatusCode.DEADLINE_EXCEEDED
    (timeline,) = told.timelines()
    assert timeline.code == "DEADLINE_EXCEEDED" and timeline.model == MODEL


@pytest.mark.parametrize("told", [(False, ALWAYS)], indirect=True)
def test_slow_requests_are_counted_and_logged_without_traces(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(15):
        assert isinstance(told.ask(message()), bytes)
    assert len(told.slow) == 15 and told.sent == []
    # Lines are limited, counts are not.
    assert 10 <= sum("slow request" in r.getMessage() for r in caplog.records) <= 15


@pytest.mark.parametrize("told", [(False, NEVER), (True, NEVER)], indirect=True)
def test_nothing_is_told_of_a_request_that_is_neither(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(ask(told.data_plane, message()), bytes)
    assert (told.slow, told.exemplars, told.timelines(), caplog.records) == ([], [], [], [])


@pytest.mark.parametrize("told", [(True, ALWAYS)], indirect=True)
def test_an_error_in_telling_does_not_fail_the_request(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.inference.request_reports.judge", lambda request: 1 / 0)
    assert isinstance(told.ask(message()), bytes)
    assert "internal error in telling of a batch" in caplog.text


def test_an_inference_without_reports_reads_neither_usage_nor_metadata(
    loaded: tuple[ServedVersions, ServerMetrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_plane = data_plane_of(loaded)
    monkeypatch.setattr("serving.inference.batch_execution.read_usage", lambda: 1 / 0)
    assert not data_plane.traces
    assert isinstance(ask(data_plane, message()), bytes)


@pytest.mark.parametrize(("option", "seconds"), [(0.0, float("inf")), (25.0, 0.025), (0.5, 0.0005)])
def test_an_option_decides_from_when_on_a_request_is_slow(
    loaded: tuple[ServedVersions, ServerMetrics], option: float, seconds: float
) -> None:
    assert slow_after(loaded[0].get(MODEL, ""), option) == seconds


def test_without_an_option_it_is_twice_the_objective_of_a_model_that_has_one() -> None:
    def loaded_version(**serving: float) -> Any:
        spec = SimpleNamespace(serving=SimpleNamespace(**serving))
        return SimpleNamespace(model=SimpleNamespace(spec=spec))

    assert slow_after(loaded_version(latency_objective_ms=60), None) == 0.12
    assert slow_after(loaded_version(latency_objective_ms=60), 0) == float("inf")
