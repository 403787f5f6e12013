"""Wishes of clients and what they are told, with a follower that a test plays."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from serving.board import Board
from serving.model_control import ModelControl
from serving.refusals import CancelledError, LimitError, UnavailableError
from serving.releases import Failure, Holding, ModelReleases, Releases, Report
from serving.version_policy import LATEST
from sharded_infer.errors import NotFoundError

SERVED = ModelReleases(
    "m", published=(1, 2), held=(Holding(1, 2, "path", 0.0, ready=True),), names={"": 2}
)


def follow(board: Board, answer: ModelReleases | None) -> threading.Thread:
    """Plays the follower: takes the first wish up, with an answer or as one for no model."""

    def run() -> None:
        while not (wishes := board.wishes()):
            pass
        serial = wishes["m"].serial
        models = {} if answer is None else {"m": replace(answer, wish=serial, done=serial)}
        board.post(Releases(models=models, answered=serial))
        board.report(0, Report(seen=board.sequence))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def outcome(answer: ModelReleases | None, act: Callable[[ModelControl], None]) -> None:
    board = Board(1)
    thread = follow(board, answer)
    try:
        act(ModelControl(board, LATEST))
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
        (replace(SERVED, held=(), names={}), "latest:1 names no version"),
    ],
)
def test_a_load_that_failed_says_why(answer: ModelReleases, words: str) -> None:
    with pytest.raises(UnavailableError, match=words):
        outcome(answer, load)


def test_an_old_failure_of_a_version_that_is_not_wanted_is_no_failure() -> None:
    outcome(replace(SERVED, failures=(Failure(1, "verify", "short", ""),)), load)


def test_a_model_that_does_not_exist_is_not_found() -> None:
    for act in (load, lambda control: control.unload("m", lambda: True)):
        with pytest.raises(NotFoundError, match="'m'"):
            outcome(None, act)


def test_a_client_that_goes_away_is_waited_for_no_more() -> None:
    with pytest.raises(CancelledError):
        ModelControl(Board(1), LATEST).load("m", lambda: False)


def ask_again_and_again(control: ModelControl) -> None:
    for _ in range(1000):
        with suppress(CancelledError):
            control.load("m", lambda: False)
        time.sleep(0.001)


def test_only_so_many_wait() -> None:
    control, over = ModelControl(Board(1), LATEST), threading.Event()

    def wait() -> None:
        with pytest.raises(CancelledError):
            control.load("m", lambda: not over.is_set())

    threads = [threading.Thread(target=wait) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        with pytest.raises(LimitError):
            ask_again_and_again(control)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_wishes_are_numbered_and_the_oldest_give_way() -> None:
    board = Board(1)
    serials = [board.wish(f"model-{number}", wanted=True) for number in range(600)]
    assert serials == sorted(set(serials))
    wishes = board.wishes()
    assert len(wishes) == 512 and wishes["model-599"].serial == serials[-1]
    assert "model-0" not in wishes
