from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serving.inference.shadows.shadow_request import ShadowRequest
from serving.inference.shadows.shadow_thread import score_again
from serving.inference.shadows.shadows import MOST_WAITING, Shadows
from serving.metrics.version_info import VersionInfo
from serving.scheduler.batching import BatchingMode
from tests.serving.inference.planes import plane_of
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request
from tests.support.waiting import until
from tests.support.wire import ask


class Place:
    """A data plane with one run slot, whose version 1 has itself as its shadow, version 2."""

    def __init__(self, ranker: Ranker) -> None:
        shadows = Shadows("canary", 1.0, Random(5).random)
        self.own = plane_of(ranker.repository, mode=BatchingMode.AUTO, shadows=shadows)
        self.default = self.own.store.get(MODEL)
        counters = self.own.metrics.version(MODEL, 2)
        counters.describe(VersionInfo(0.1, (1,), ranker.model.spec.tower.outputs))
        # As another version of the same weights: its number is all that differs.
        model: Any = SimpleNamespace(
            name=MODEL, version=2, spec=ranker.model.spec, engine=self.default.model.engine
        )
        self.shadow = replace(self.default, metrics=counters, model=model)
        self.own.store.add(self.shadow)
        self.own.store.offer({MODEL: {"": 1, "1": 1, "canary": 2}})

    def ask(self, samples: int = 2, seed: int = 0) -> bytes:
        message = infer_request(good_inputs(samples, seed)).SerializeToString()
        answer = ask(self.own.plane, message)
        assert isinstance(answer, bytes)
        return answer

    def counted(self, name: str, **labels: str) -> float:
        return self.own.total(f"shadow_{name}", **labels)


def test_what_waits_runs_on_idle_slots_and_the_rest_was_dropped(ranker: Ranker) -> None:
    place = Place(ranker)
    for seed in range(MOST_WAITING + 6):
        place.ask(seed=seed)
    assert place.counted("dropped_requests_total", reason="full") == 6
    thread = place.own.plane.shadow_thread
    assert thread is not None
    thread.start(lambda: None)
    try:
        until(lambda: place.counted("requests_total", code="OK") == MOST_WAITING, "all run")
        place.ask()
        until(lambda: place.counted("requests_total", code="OK") == MOST_WAITING + 1, "one more")
    finally:
        thread.stop()
    # The same weights score the same bits when requests run alone.
    assert place.counted("score_difference_sum") == 0
    assert place.counted("score_difference_bucket", le="0.0", output="score") == 2 * (
        MOST_WAITING + 1
    )


def request_of(place: Place, message: bytes, **scores: Any) -> ShadowRequest:
    read = lambda reader: reader.read_message(message)  # noqa: E731
    return ShadowRequest(place.default, message, read, 2, scores, 0.001)


def test_outputs_of_one_name_and_shape_are_compared(ranker: Ranker) -> None:
    place = Place(ranker)
    message = infer_request(good_inputs(2)).SerializeToString()
    other_shape, unknown = np.zeros((2, 7), np.float32), np.zeros(2, np.float32)
    own = ranker.predict(good_inputs(2))["score"]
    request = request_of(
        place, message, score=own + np.float32(0.5), labels=other_shape, old=unknown
    )
    score_again(request, place.shadow)
    assert place.counted("requests_total", code="OK") == 1
    assert place.counted("score_difference_count", output="score") == 2
    assert place.counted("score_difference_sum", output="score") == pytest.approx(1.0, abs=1e-3)
    assert place.counted("score_difference_count", output="labels") == 0


def test_a_message_that_the_shadow_refuses_is_counted_by_its_code(ranker: Ranker) -> None:
    place = Place(ranker)
    inputs = good_inputs(2)
    for name, message in (
        ("unread", b"\xff\xff"),
        ("id", infer_request({**inputs, "user": inputs["user"] + 50}).SerializeToString()),
    ):
        before = place.counted("requests_total", code="INVALID_ARGUMENT")
        score_again(request_of(place, message), place.shadow)
        assert place.counted("requests_total", code="INVALID_ARGUMENT") == before + 1, name
    assert place.counted("requests_total", code="OK") == 0
