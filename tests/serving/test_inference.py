"""Predict calls from message to message, without a transport: what is passed on and counted."""

import math
import threading
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.batcher import QueueLimits
from serving.inference import PUSHBACK, Inference, Refusal
from serving.job import Job
from serving.lane import Mode
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.snapshot import ServingOverrides
from sharded_infer.executor import run_batch
from sharded_infer.repository import Repository
from tests.serving.conftest import MODEL, Ranker, good_inputs, infer_request

DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED
# Nothing in a test that passes waits so long.
LONG = 30.0


class Desk:
    """An `Inference` over the loaded ranker, and what came of the calls.

    Batched lanes with a delay that never ends keep requests waiting until the test is done.
    """

    def __init__(self, ranker: Ranker, mode: Mode, limits: QueueLimits | None = None) -> None:
        self.metrics = Metrics()
        store = ModelStore(
            Repository(ranker.repository),
            self.metrics,
            topology=None,
            max_batch=256,
            overrides=ServingOverrides(mode, 10**9),
        )
        store.load(MODEL)
        self.inference = Inference(store, self.metrics, slots=1, limits=limits or QueueLimits())
        self.outcomes: list[bytes | Refusal] = []

    def submit(self, seconds: float | None = None, **parameters: int) -> Job | None:
        return self.inference.submit(message(**parameters), seconds, self.outcomes.append)

    def counted(self, name: str, **labels: str) -> dict[str, float]:
        """The samples of a family by the label that is not given, without zeros."""
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
    """Requests wait here."""
    return Desk(ranker, Mode.BATCHED)


def job_of(job: Job | None) -> Job:
    assert job is not None
    return job


def test_a_requests_priority_orders_it_among_those_that_wait(waiting: Desk) -> None:
    usual, urgent, idle = (job_of(waiting.submit(priority=level)) for level in (0, 1, 9))
    lane = usual.ticket.lane
    assert list(lane.tickets()) == [urgent.ticket, usual.ticket, idle.ticket]


@pytest.mark.parametrize(
    ("seconds", "timeout_us", "bound"),
    [(None, 0, math.inf), (5.0, 0, 5.0), (None, 3_000_000, 3.0), (5.0, 3_000_000, 3.0),
     (2.0, 3_000_000, 2.0), (None, 2**63 - 1, 2**63 / 1e6)],
)  # fmt: skip
def test_the_earlier_of_the_clients_deadline_and_its_timeout_holds(
    waiting: Desk, seconds: float | None, timeout_us: int, bound: float
) -> None:
    job = job_of(waiting.submit(seconds, timeout=timeout_us))
    assert job.ticket.deadline - job.work.started == pytest.approx(bound)


def test_a_ticket_says_how_much_waits(waiting: Desk) -> None:
    job = job_of(waiting.submit())
    assert (job.ticket.samples, job.ticket.size_bytes) == (2, len(message()))
    assert waiting.inference.dispatcher.waiting == (1, 2)


def test_a_timeout_that_has_passed_is_refused_and_counted(waiting: Desk) -> None:
    assert waiting.submit(timeout=1) is None
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Refusal) and refusal.code is DEADLINE
    assert refusal.metadata == ()
    assert waiting.refused() == {"expired": 1} and waiting.codes() == {"DEADLINE_EXCEEDED": 1}


def test_a_deadline_that_passes_while_it_waits_is_counted_once(waiting: Desk) -> None:
    job = job_of(waiting.submit(LONG))
    job.ticket.deadline = 0.0
    waiting.inference.dispatcher.expire()
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Refusal) and refusal.code is DEADLINE
    assert waiting.refused() == {"expired": 1} and waiting.codes() == {"DEADLINE_EXCEEDED": 1}


def test_a_client_that_leaves_is_counted_as_cancelled(waiting: Desk) -> None:
    job = job_of(waiting.submit())
    waiting.inference.dispatcher.cancel(job)
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Refusal) and refusal.code is grpc.StatusCode.CANCELLED
    assert waiting.refused() == {"cancelled": 1} and waiting.codes() == {"CANCELLED": 1}


def test_a_deadline_that_cannot_be_met_is_counted_by_its_reason(ranker: Ranker) -> None:
    desk = Desk(ranker, Mode.AUTO)
    for _ in range(3000):
        desk.submit()
        if desk.submit(1e-4) is None:
            break
    late = [o for o in desk.outcomes if isinstance(o, Refusal) and "cannot be met" in o.message]
    assert late and late[0].code is DEADLINE
    assert desk.refused()["deadline"] == len(late)


def test_a_full_queue_says_when_to_come_again(ranker: Ranker) -> None:
    desk = Desk(ranker, Mode.BATCHED, QueueLimits(requests=2))
    assert desk.submit() and desk.submit() and desk.submit() is None
    (refusal,) = desk.outcomes
    assert isinstance(refusal, Refusal)
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    ((key, value),) = refusal.metadata
    assert key == PUSHBACK and int(value) >= 1
    assert desk.refused() == {"queue_full": 1} and desk.codes() == {"RESOURCE_EXHAUSTED": 1}


@pytest.mark.parametrize("data", [message(model="other"), message(model=""), b"\xff"])
def test_what_names_no_model_is_counted_without_its_name(waiting: Desk, data: bytes) -> None:
    assert waiting.inference.submit(data, None, waiting.outcomes.append) is None
    (refusal,) = waiting.outcomes
    assert isinstance(refusal, Refusal)
    assert waiting.codes() == {} and waiting.codes("other") == {}
    assert waiting.codes("unknown") == {refusal.code.name: 1}


def test_a_request_that_fails_does_not_fail_those_in_its_batch(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Checked requests do not fail; if one does all the same, the others are answered.
    desk = Desk(ranker, Mode.AUTO)
    jobs = [job_of(desk.submit()) for _ in range(4)]
    bad = jobs[2].work.model_input

    def failing(model: Any, requests: Any) -> Any:
        if any(one is bad for one in requests):
            raise RuntimeError("of the third")
        return run_batch(model, requests)

    monkeypatch.setattr("serving.batch_run.run_batch", failing)
    while desk.inference.dispatcher.work():
        pass
    codes = ["OK" if isinstance(o, bytes) else o.code.name for o in desk.outcomes]
    assert sorted(codes) == ["INTERNAL", "OK", "OK", "OK"]
    assert desk.codes() == {"OK": 3, "INTERNAL": 1} and desk.refused() == {}


def test_both_ways_of_asking_give_the_same_bytes(ranker: Ranker) -> None:
    desk = Desk(ranker, Mode.AUTO)
    seen: list[Job] = []
    answers: list[bytes | Refusal] = []
    asking = threading.Thread(
        target=lambda: answers.append(desk.inference.answer(message(), None, seen.append))
    )
    asking.start()
    asking.join(LONG)
    desk.submit()
    assert desk.inference.dispatcher.work()
    assert isinstance(answers[0], bytes) and answers == desk.outcomes and len(seen) == 1
