import math
from time import monotonic
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.errors import DeadlineError
from serving.inference.batch_execution import BatchExecution
from serving.inference.data_plane import DataPlane
from serving.inference.predict_call import PredictCall
from serving.metrics.server_metrics import ServerMetrics
from serving.protocol.codec import INFER_CODEC
from serving.scheduler.batcher import QueueLimits
from serving.scheduler.queued_request import BatchingMode
from serving.status import Status, StatusCode
from serving.versions.loaded_version import ServingOverrides
from serving.versions.served_versions import ServedVersions
from sharded_infer.engines.executor import run_batch
from sharded_infer.repositories.repository import Repository
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request

DEADLINE = StatusCode.DEADLINE_EXCEEDED
# Nothing in a test that passes waits so long.
LONG = 30.0


class Desk:
    """A `DataPlane` over the loaded ranker, and the results of its calls.

    Batched queues with an endless delay keep requests waiting until the test is done.
    """

    def __init__(
        self, ranker: Ranker, mode: BatchingMode, limits: QueueLimits | None = None
    ) -> None:
        self.metrics = ServerMetrics()
        store = ServedVersions(
            Repository(ranker.repository),
            self.metrics,
            topology=None,
            max_batch=256,
            overrides=ServingOverrides(mode, 10**9),
        )
        store.load(MODEL)
        self.data_plane = DataPlane(store, self.metrics, slots=1, limits=limits or QueueLimits())
        self.outcomes: list[bytes | Status] = []

    def submit(self, seconds: float | None = None, **parameters: int) -> PredictCall | None:
        return self.data_plane.submit(
            INFER_CODEC, message(**parameters), self.outcomes.append, time_remaining=seconds
        )

    def counted(self, name: str, **labels: str) -> dict[str, float]:
        """Nonzero samples of a family by the label that is not given."""
        found = {}
        page = generate_latest(self.metrics.registry).decode()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                rest = {k: v for k, v in sample.labels.items() if labels.get(k, v) == v}
                if sample.name == name and rest.keys() == sample.labels.keys() and sample.value:
                    keys = [v for k, v in sorted(rest.items()) if k in ("code", "reason")]
                    found[",".join(keys)] = sample.value
        return found

    def refused(self) -> dict[str, float]:
        return self.counted("sharded_infer_requests_refused_total", model=MODEL)

    def codes(self, model: str = MODEL) -> dict[str, float]:
        return self.counted("sharded_infer_requests_total", model=model)


def message(*, model: str = MODEL, **parameters: int) -> bytes:
    request = infer_request(good_inputs(2), model=model)
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    data: bytes = request.SerializeToString()
    return data


@pytest.fixture
def waiting(ranker: Ranker) -> Desk:
    return Desk(ranker, BatchingMode.BATCHED)


def call_of(call: PredictCall | None) -> PredictCall:
    assert call is not None
    return call


def test_a_requests_priority_orders_it_among_those_that_wait(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = Desk(ranker, BatchingMode.AUTO)
    usual, urgent, idle = (call_of(standby.submit(priority=level)) for level in (0, 1, 9))
    ran: list[Any] = []

    def recorded(model: Any, requests: Any, deadline: float, **_: Any) -> Any:
        ran.extend(requests)
        return run_batch(model, requests)

    monkeypatch.setattr("serving.inference.batch_execution.run_batch", recorded)
    while standby.data_plane.dispatcher.work():
        pass
    expected = [call.model_input for call in (urgent, usual, idle)]
    assert len(ran) == 3 and all(one is other for one, other in zip(ran, expected, strict=True))


@pytest.mark.parametrize(
    ("seconds", "timeout_us", "bound"),
    [(None, 0, math.inf), (5.0, 0, 5.0), (None, 3_000_000, 3.0), (5.0, 3_000_000, 3.0),
     (2.0, 3_000_000, 2.0), (None, 2**63 - 1, 2**63 / 1e6)],
)  # fmt: skip
def test_the_earlier_of_the_clients_deadline_and_its_timeout_holds(
    waiting: Desk, seconds: float | None, timeout_us: int, bound: float
) -> None:
    call = call_of(waiting.submit(seconds, timeout=timeout_us))
    assert call.deadline - call.arrived == pytest.approx(bound)


def test_a_call_says_how_much_waits(waiting: Desk) -> None:
    call = call_of(waiting.submit())
    assert (call.samples, call.size_bytes) == (2, len(message()))
    assert waiting.data_plane.dispatcher.waiting == (1, 2)


def test_a_timeout_that_has_passed_is_refused_and_counted(waiting: Desk) -> None:
    assert waiting.submit(timeout=1) is None
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Status) and refusal.code is DEADLINE
    assert refusal.retry_seconds is None
    assert waiting.refused() == {"expired": 1} and waiting.codes() == {"DEADLINE_EXCEEDED": 1}


def test_a_deadline_that_passes_while_it_waits_is_counted_once(
    waiting: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(waiting.submit(LONG))
    monkeypatch.setattr("serving.scheduler.dispatcher.monotonic", lambda: call.deadline)
    waiting.data_plane.dispatcher.expire()
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Status) and refusal.code is DEADLINE
    assert waiting.refused() == {"expired": 1} and waiting.codes() == {"DEADLINE_EXCEEDED": 1}


def test_a_client_that_leaves_is_counted_as_cancelled(waiting: Desk) -> None:
    call = call_of(waiting.submit())
    waiting.data_plane.cancel(call)
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Status) and refusal.code is StatusCode.CANCELLED
    assert waiting.refused() == {"cancelled": 1} and waiting.codes() == {"CANCELLED": 1}


def test_a_deadline_that_cannot_be_met_is_counted_by_its_reason(ranker: Ranker) -> None:
    standby = Desk(ranker, BatchingMode.AUTO)
    for _ in range(3000):
        standby.submit()
        if standby.submit(1e-4) is None:
            break
    late = [o for o in standby.outcomes if isinstance(o, Status) and "cannot be met" in o.message]
    assert late and late[0].code is DEADLINE
    assert standby.refused()["deadline"] == len(late)


def test_a_full_queue_says_when_to_come_again(ranker: Ranker) -> None:
    standby = Desk(ranker, BatchingMode.BATCHED, QueueLimits(requests=2))
    assert standby.submit() and standby.submit() and standby.submit() is None
    (refusal,) = standby.outcomes
    assert isinstance(refusal, Status)
    assert refusal.code is StatusCode.RESOURCE_EXHAUSTED
    assert refusal.retry_seconds is not None and refusal.retry_seconds >= 0.001
    assert standby.refused() == {"queue_full": 1} and standby.codes() == {"RESOURCE_EXHAUSTED": 1}


@pytest.mark.parametrize("data", [message(model="other"), message(model=""), b"\xff"])
def test_what_names_no_model_is_counted_without_its_name(waiting: Desk, data: bytes) -> None:
    assert waiting.data_plane.submit(INFER_CODEC, data, waiting.outcomes.append) is None
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Status)
    assert waiting.codes() == {} and waiting.codes("other") == {}
    assert waiting.codes("unknown") == {refusal.code.name: 1}


def test_a_request_that_fails_does_not_fail_those_in_its_batch(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Checked requests do not fail; if one does all the same, the others are answered.
    standby = Desk(ranker, BatchingMode.AUTO)
    calls = [call_of(standby.submit()) for _ in range(4)]
    bad = calls[2].model_input

    def failing(model: Any, requests: Any, deadline: float, **_: Any) -> Any:
        if any(one is bad for one in requests):
            raise RuntimeError("of the third")
        return run_batch(model, requests)

    monkeypatch.setattr("serving.inference.batch_execution.run_batch", failing)
    while standby.data_plane.dispatcher.work():
        pass
    codes = ["OK" if isinstance(o, bytes) else o.code.name for o in standby.outcomes]
    assert sorted(codes) == ["INTERNAL", "OK", "OK", "OK"]
    assert standby.codes() == {"OK": 3, "INTERNAL": 1} and standby.refused() == {}


@pytest.mark.parametrize("passes", [True, False])
def test_only_requests_whose_deadlines_pass_fail_for_a_late_lookup(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    waiting = Desk(ranker, BatchingMode.BATCHED)
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
    results = BatchExecution(None, waiting.data_plane.held)(calls)
    failed = [isinstance(result, DeadlineError) for result in results]
    # A lookup that took the time of the hosts file says nothing of any one request.
    assert failed == ([True, False, True, False] if passes else [True] * 4)
    assert ran == ([4, 2] if passes else [4])
    # They do not wait for the others.
    assert told == ([0, 2] if passes else [0])
