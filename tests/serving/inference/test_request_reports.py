from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from serving.inference.request_reports import RequestReports, slow_after
from serving.observability.request_timeline import RequestTimeline
from serving.observability.trace_settings import TraceSampling
from serving.observability.tracer import Tracer
from serving.scheduler.batching import BatchingMode
from serving.status import Status
from tests.serving.inference.planes import Plane, plane_of
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request
from tests.support.wire import ask

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PARENT = (("traceparent", f"00-{TRACE:032x}-00f067aa0ba902b7-01"),)
ALWAYS, NEVER = 1e-6, 0.0


@pytest.fixture
def sent() -> list[RequestTimeline]:
    return []


@pytest.fixture
def tracer(sent: list[RequestTimeline]) -> Iterator[Tracer]:
    def send(requests: Sequence[RequestTimeline]) -> bool:
        sent.extend(requests)
        return True

    made = Tracer(TraceSampling(0.0), send, period_seconds=3600.0)
    yield made
    made.stop()


@pytest.fixture
def traced(ranker: Ranker, tracer: Tracer) -> Plane:
    reports = RequestReports(tracer, NEVER)
    return plane_of(ranker.repository, mode=BatchingMode.INLINE, reports=reports)


def exemplars(plane: Plane) -> list[str]:
    return [one.trace_id for one in plane.metrics.version(MODEL, 1).exemplars.last() if one]


def message(samples: int = 2, **changes: str) -> bytes:
    return bytes(infer_request(good_inputs(samples), **changes).SerializeToString())


def test_a_traced_request_is_told_once_with_all_that_is_known(
    traced: Plane, tracer: Tracer, sent: list[RequestTimeline]
) -> None:
    asked = message(3, request_id="a" * 500)
    assert isinstance(ask(traced.plane, asked, metadata=PARENT), bytes)
    tracer.stop()
    (timeline,) = sent
    assert (timeline.model, timeline.version, timeline.samples) == (MODEL, 1, 3)
    assert timeline.request_id == "a" * 128 + "…"
    assert timeline.trace is not None and timeline.trace.trace_id == TRACE
    assert timeline.batch is not None and timeline.batch.requests == 1
    assert timeline.batch.usage.wall_seconds >= timeline.run_seconds > 0.0
    assert exemplars(traced) == [f"{TRACE:032x}"] and traced.total("slow_requests_total") == 0


def test_requests_that_fail_are_traced_as_far_as_they_came(
    traced: Plane, tracer: Tracer, sent: list[RequestTimeline]
) -> None:
    wrong, late = infer_request(good_inputs(2)), infer_request(good_inputs(2))
    wrong.inputs[0].name = "nothing"
    late.parameters["timeout"].int64_param = 1
    bad = (b"\xff", message(model="nobody"), *(r.SerializeToString() for r in (wrong, late)))
    for asked in bad:
        assert isinstance(ask(traced.plane, asked, metadata=PARENT), Status)
    tracer.stop()
    assert [(timeline.code, timeline.model) for timeline in sent] == [
        ("INVALID_ARGUMENT", ""),
        ("NOT_FOUND", ""),
        ("INVALID_ARGUMENT", MODEL),
        ("DEADLINE_EXCEEDED", MODEL),
    ]
    assert all(timeline.error and timeline.batch is None for timeline in sent)
    assert exemplars(traced) == []


def test_nothing_is_told_of_a_request_that_is_neither_traced_nor_slow(
    traced: Plane, tracer: Tracer, sent: list[RequestTimeline], caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(ask(traced.plane, message()), bytes)
    tracer.stop()
    assert traced.total("slow_requests_total") == 0
    assert (exemplars(traced), sent, caplog.records) == ([], [], [])


def test_slow_requests_are_counted_and_logged_without_traces_whatever_fails_in_telling(
    ranker: Ranker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = RequestReports(None, ALWAYS)
    slow = plane_of(ranker.repository, mode=BatchingMode.INLINE, reports=reports)
    for _ in range(15):
        assert isinstance(ask(slow.plane, message()), bytes)
    assert slow.total("slow_requests_total") == 15
    # Lines are limited, counts are not.
    assert 10 <= sum("slow request" in r.getMessage() for r in caplog.records) <= 15
    monkeypatch.setattr("serving.inference.request_reports.judge", lambda request: 1 / 0)
    assert isinstance(ask(slow.plane, message()), bytes)
    assert "internal error in counting a batch" in caplog.text


def test_the_option_or_twice_the_models_objective_decides_from_when_on_a_request_is_slow() -> None:
    spec = SimpleNamespace(serving=SimpleNamespace(latency_objective_ms=60))
    version: Any = SimpleNamespace(model=SimpleNamespace(spec=spec))
    for option, seconds in ((0.0, float("inf")), (25.0, 0.025), (0.5, 0.0005), (None, 0.12)):
        assert slow_after(version, option) == seconds
