import pytest

from serving.scheduler.batch_threads import EXPIRY_SECONDS, Expiry
from serving.scheduler.queued_request import BatchingMode
from serving.status import Status, StatusCode
from tests.serving.inference.test_data_plane import LONG, Desk
from tests.support.servers import Ranker


@pytest.fixture
def waiting(ranker: Ranker) -> Desk:
    return Desk(ranker, BatchingMode.BATCHED)


def test_waiting_requests_are_looked_through_for_passed_deadlines(
    waiting: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, patient = waiting.submit(LONG), waiting.submit(2.0 * LONG)
    assert late is not None and patient is not None
    monkeypatch.setattr("serving.scheduler.dispatcher.monotonic", lambda: late.deadline)
    pause = Expiry(waiting.data_plane.dispatcher).look()
    (outcome,) = waiting.outcomes
    assert isinstance(outcome, Status) and outcome.code is StatusCode.DEADLINE_EXCEEDED
    assert pause is not None and 0.0 <= pause <= EXPIRY_SECONDS
    assert late.done and not patient.done


def test_nothing_is_looked_for_while_nothing_waits(waiting: Desk) -> None:
    expiry = Expiry(waiting.data_plane.dispatcher)
    assert expiry.look() is None
    assert waiting.submit(LONG) is not None and expiry.look() is not None
