import math
from time import monotonic
from typing import Any

import pytest

from serving.errors import DeadlineError
from serving.inference.call_batch import CallFacts
from serving.scheduler.batching import BatchingMode
from serving.scheduler.scheduler import QueueLimits
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


def begun(place: Plane) -> list[CallFacts]:
    """The calls of the next batch, in its order, which are not answered."""
    batch, _, _ = place.plane.compiled.begin(monotonic())
    assert batch is not None
    return list(batch.calls())


def test_a_requests_priority_orders_it_among_those_that_wait(standby: Plane) -> None:
    usual, urgent, idle = (standby.submit(priority=level) for level in (0, 1, 9))
    assert [call.number for call in begun(standby)] == [urgent, usual, idle]


def test_the_earlier_of_the_clients_deadline_and_its_timeout_holds(ranker: Ranker) -> None:
    for seconds, timeout_us, bound in (
        (None, 0, math.inf),
        (500.0, 0, 500.0),
        (None, 300_000_000, 300.0),
        (500.0, 300_000_000, 300.0),
        (200.0, 300_000_000, 200.0),
        (None, 2**63 - 1, 2**63 / 1e6),
    ):
        standby = plane_of(ranker.repository, mode=BatchingMode.AUTO)
        standby.submit(seconds, timeout=timeout_us)
        (call,) = begun(standby)
        assert call.deadline - call.arrived == pytest.approx(bound)


def test_calls_that_end_unanswered_are_counted_by_code_and_reason_once(
    waiting: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waiting.submit(timeout=1) is None
    number = waiting.submit()
    assert waiting.plane.dispatcher.waiting == (1, 2)
    assert waiting.plane.dispatcher.scheduler.size_bytes == len(predict_bytes())
    assert number is not None
    assert waiting.wire.gone(waiting.plane.take, (number,)) == []
    assert waiting.submit(LONG) is not None
    later = monotonic() + 2 * LONG
    monkeypatch.setattr("serving.scheduler.dispatcher.monotonic", lambda: later)
    waiting.plane.dispatcher.expire()
    ended = [one.code for one in waiting.outcomes if isinstance(one, Status)]
    # The client of the cancelled one has gone.
    assert ended == [DEADLINE, DEADLINE]
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
    assert waiting.send(data) is None
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Status)
    assert codes(waiting) == {} and codes(waiting, "other") == {}
    assert codes(waiting, "unknown") == {refusal.code.name: 1}


@pytest.mark.parametrize("passes", [True, False])
def test_only_requests_whose_deadlines_pass_fail_for_a_late_lookup(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    standby = plane_of(ranker.repository, mode=BatchingMode.AUTO)
    for seconds in (LONG, 4 * LONG, LONG, 4 * LONG):
        assert standby.submit(seconds if passes else LONG)
    model = standby.store.get(MODEL).model
    monkeypatch.setattr(model, "is_front", True)
    ran: list[int] = []
    answered: list[int] = []

    def late(model: Any, batch: Any, deadline: float, **fields: Any) -> Any:
        ran.append(batch.batch_size)
        answered.append(len(standby.outcomes))
        if len(ran) == 1:
            later = deadline if passes else monotonic()
            monkeypatch.setattr("serving.inference.batch_execution.monotonic", lambda: later)
            raise DeadlineError("shard host 1: no answer")
        return run_batch(model, batch, deadline, **fields)

    monkeypatch.setattr("serving.inference.batch_execution.run_batch", late)
    standby.work_off()
    failed = [isinstance(outcome, Status) for outcome in standby.outcomes]
    # A lookup that took the time of the hosts file says nothing of any one request.
    assert sorted(failed) == ([False, False, True, True] if passes else [True] * 4)
    assert ran == ([8, 4] if passes else [8])
    # They do not wait for the others.
    assert answered == ([0, 2] if passes else [0])
