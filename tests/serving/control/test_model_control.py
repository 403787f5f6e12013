import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from serving.config.version_policy import LATEST
from serving.control.model_control import ModelControl
from serving.errors import CancelledError, LimitError, UnavailableError
from serving.versions.shared_state import SharedState
from serving.versions.state import AssignedVersion, DesiredState, Failure, ModelState, WorkerReport
from sharded_infer.errors import NotFoundError
from tests.support.waiting import until

SERVED = ModelState(
    "m", published=(1, 2), assigned=(AssignedVersion(1, 2, "path", 0.0, ready=True),), names={"": 2}
)


def outcome(answer: ModelState | None, act: Callable[[ModelControl], None]) -> None:
    shared_state = SharedState(1)

    def watch_repository() -> None:
        while not (load_requests := shared_state.load_requests()):
            pass
        serial = load_requests["m"].serial
        models = {} if answer is None else {"m": replace(answer, load_request=serial, done=serial)}
        shared_state.post(DesiredState(models=models, answered=serial))
        shared_state.report(0, WorkerReport(seen=shared_state.sequence))

    thread = threading.Thread(target=watch_repository)
    thread.start()
    try:
        act(ModelControl(shared_state, LATEST))
    finally:
        thread.join()


def load(control: ModelControl) -> None:
    control.load("m", lambda: True)


def test_a_load_ends_when_the_model_is_served() -> None:
    outcome(SERVED, load)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            replace(SERVED, published=(1, 2, 3), failures=(Failure(3, "verify", "short", ""),)),
            "version 3 failed at verify: short",
        ),
        (replace(SERVED, trouble="the store does not answer"), "the store does not answer"),
        (replace(SERVED, assigned=(), names={}), "latest:1 names no version"),
    ],
)
def test_a_load_that_failed_says_why(answer: ModelState, words: str) -> None:
    with pytest.raises(UnavailableError, match=words):
        outcome(answer, load)


def test_an_old_failure_of_a_version_that_is_not_wanted_is_no_failure() -> None:
    outcome(replace(SERVED, failures=(Failure(1, "verify", "short", ""),)), load)


def test_a_model_that_does_not_exist_is_not_found() -> None:
    for act in (load, lambda control: control.unload("m", lambda: True)):
        with pytest.raises(NotFoundError, match="'m'"):
            outcome(None, act)


def test_only_so_many_wait() -> None:
    control, over = ModelControl(SharedState(1), LATEST), threading.Event()

    def wait(_: int) -> None:
        while not over.is_set():
            with suppress(CancelledError, LimitError):
                control.load("m", lambda: not over.is_set())

    def is_full() -> bool:
        try:
            control.load("m", lambda: False)
        except LimitError:
            return True
        except CancelledError:
            return False

    with ThreadPoolExecutor(6) as threads:
        waiting = threads.map(wait, range(6))
        try:
            until(is_full, "no more may wait")
        finally:
            over.set()
        list(waiting)


def test_load_requests_are_numbered_and_the_oldest_give_way() -> None:
    shared_state = SharedState(1)
    serials = [shared_state.load_request(f"model-{number}", wanted=True) for number in range(600)]
    assert serials == sorted(set(serials))
    load_requests = shared_state.load_requests()
    assert len(load_requests) == 512 and load_requests["model-599"].serial == serials[-1]
    assert "model-0" not in load_requests
