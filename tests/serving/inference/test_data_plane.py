import math
from time import monotonic
from typing import Any

import pytest

from serving.errors import DeadlineError
from serving.inference.batch_execution import BatchExecution
from serving.inference.predict_call import PredictCall
from serving.protocol.codec import INFER_CODEC
from serving.scheduler.scheduler import QueueLimits
from serving.scheduler.batching import BatchingMode
from serving.status import Status, StatusCode
from sharded_infer.engines.executor import run_batch
from tests.serving.inference.planes import ENDLESS, Plane, plane_of, predict_bytes
from tests.support.servers import MODEL, Ranker

DEADLINE = StatusCode.DEADLINE_EXCEEDED
# Nothing in a test that passes waits so long.
LONG = 30.0


def refused(place: Plane) -> dict[str, float]:
    return place.totals_by("reason", "requests_refused_total", model=MODEL)


def codes(place: Plane, model: str = MODEL) -> dict[str, float]:
    return place.totals_by("code", "requests_total", model=model)


@pytest.fixture
def waiting(ranker: Ranker) -> Plane:
    return plane_of(ranker.repository, delay_us=ENDLESS)


@pytest.fixture
def standby(ranker: Ranker) -> Plane:
    return plane_of(ranker.repository, mode=BatchingMode.AUTO)


def call_of(call: PredictCall | None) -> PredictCall:
    assert call is not None
    return call


def test_a_requests_priority_orders_it_among_those_that_wait(
    standby: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, urgent, idle = (call_of(standby.submit(priority=level)) for level in (0, 1, 9))
    ran: list[Any] = []

    def recorded(model: Any, requests: Any, deadline: float, **_: Any) -> Any:
        ran.extend(requests)
        return run_batch(model, requests)

    monkeypatch.setattr("serving.inference.batch_execution.run_batch", recorded)
    standby.work_off()
    expected = [call.model_input for call in (urgent, usual, idle)]
    assert len(ran) == 3 and all(one is other for one, other in zip(ran, expected, strict=True))


def test_the_earlier_of_the_clients_deadline_and_its_timeout_holds(waiting: Plane) -> None:
    for seconds, timeout_us, bound in (
        (None, 0, math.inf),
        (5.0, 0, 5.0),
        (None, 3_000_000, 3.0),
        (5.0, 3_000_000, 3.0),
        (2.0, 3_000_000, 2.0),
        (None, 2**63 - 1, 2**63 / 1e6),
    ):
        call = call_of(waiting.submit(seconds, timeout=timeout_us))
        assert call.deadline - call.arrived == pytest.approx(bound)


def test_calls_that_end_unanswered_are_counted_by_code_and_reason_once(
    waiting: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waiting.submit(timeout=1) is None
    call = call_of(waiting.submit())
    assert (call.samples, call.size_bytes) == (2, len(predict_bytes()))
    assert waiting.plane.dispatcher.waiting == (1, 2)
    waiting.plane.cancel(call)
    call = call_of(waiting.submit(LONG))
    monkeypatch.setattr("serving.scheduler.dispatcher.monotonic", lambda: call.deadline)
    waiting.plane.dispatcher.expire()
    ended = [one.code for one in waiting.outcomes if isinstance(one, Status)]
    assert ended == [DEADLINE, StatusCode.CANCELLED, DEADLINE]
    assert refused(waiting) == {"expired": 2, "cancelled": 1}
    assert codes(waiting) == {"DEADLINE_EXCEEDED": 2, "CANCELLED": 1}


def test_a_full_queue_says_when_to_come_again(ranker: Ranker) -> None:
    standby = plane_of(ranker.repository, delay_us=ENDLESS, limits=QueueLimits(requests=2))
    assert standby.submit() and standby.submit() and standby.submit() is None
    (refusal,) = standby.outcomes
    assert isinstance(refusal, Status)
    assert refusal.code is StatusCode.RESOURCE_EXHAUSTED
    assert refusal.retry_seconds is not None and refusal.retry_seconds >= 0.001
    assert refused(standby) == {"queue_full": 1} and codes(standby) == {"RESOURCE_EXHAUSTED": 1}


@pytest.mark.parametrize("data", [predict_bytes(model="other"), predict_bytes(model=""), b"\xff"])
def test_what_names_no_model_is_counted_without_its_name(waiting: Plane, data: bytes) -> None:
    assert waiting.plane.submit(INFER_CODEC, data, waiting.outcomes.append) is None
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Status)
    assert codes(waiting) == {} and codes(waiting, "other") == {}
    assert codes(waiting, "unknown") == {refusal.code.name: 1}


@pytest.mark.parametrize("passes", [True, False])
def test_only_requests_whose_deadlines_pass_fail_for_a_late_lookup(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    waiting = plane_of(ranker.repository, delay_us=ENDLESS)
    calls = [call_of(waiting.submit(LONG)) for _ in range(4)]
    ran: list[int] = []
    told: list[int] = []

    def late(model: Any, requests: Any, deadline: float, **_: Any) -> Any:
        ran.append(len(requests))
        told.append(len(waiting.outcomes))
        if len(requests) == 4 or deadline < last:
            raise DeadlineError("shard host 1: no answer")
        return run_batch(model, requests, deadline)

    monkeypatch.setattr("serving.inference.batch_execution.run_batch", late)
    last = calls[3].deadline
    if passes:
        calls[0].deadline = calls[2].deadline = monotonic()
        calls[1].deadline = last
    results = BatchExecution(None, waiting.plane.held)(calls)
    failed = [isinstance(result, DeadlineError) for result in results]
    # A lookup that took the time of the hosts file says nothing of any one request.
    assert failed == ([True, False, True, False] if passes else [True] * 4)
    assert ran == ([4, 2] if passes else [4])
    # They do not wait for the others.
    assert told == ([0, 2] if passes else [0])
