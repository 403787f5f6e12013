import threading
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serving.inference.data_plane import DataPlane
from serving.inference.shadows.shadow_request import ShadowRequest
from serving.inference.shadows.shadow_thread import score_again
from serving.inference.shadows.shadows import MOST_WAITING, Shadows
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from serving.protocol.codec import INFER_CODEC
from serving.scheduler.batcher import QueueLimits
from serving.scheduler.queued_request import BatchingMode, BatchingPolicy, QueuedRequest
from serving.scheduler.version_queue import VersionQueue
from serving.versions.served_versions import ServedVersions
from sharded_infer.repositories.repository import Repository
from tests.support.asking import ask
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request
from tests.support.waiting import until


class Place:
    """A data plane with one run slot, whose version 1 has itself as its shadow, version 2."""

    def __init__(self, ranker: Ranker) -> None:
        self.metrics = ServerMetrics(shadows=True)
        self.store = ServedVersions(
            Repository(ranker.repository), self.metrics, topology=None, max_batch=256
        )
        self.store.load(MODEL)
        shadows = Shadows("canary", 1.0, Random(5).random)
        self.plane = DataPlane(
            self.store, self.metrics, slots=1, limits=QueueLimits(), shadows=shadows
        )
        self.default = self.store.get(MODEL)
        counters = self.metrics.version(MODEL, 2)
        counters.describe(VersionInfo(0.1, (1,), ranker.model.spec.tower.outputs))
        # As another version of the same weights: its number is all that differs.
        model: Any = SimpleNamespace(
            name=MODEL, version=2, spec=ranker.model.spec, engine=self.default.model.engine
        )
        self.shadow = replace(self.default, metrics=counters, model=model)
        self.store.add(self.shadow)
        self.store.offer({MODEL: {"": 1, "1": 1, "canary": 2}})

    def ask(self, samples: int = 2, seed: int = 0) -> bytes:
        message = infer_request(good_inputs(samples, seed)).SerializeToString()
        answer = ask(self.plane, message)
        assert isinstance(answer, bytes)
        return answer

    def counted(self, name: str, **labels: str) -> float:
        text = generate_latest(self.metrics.registry).decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"sharded_infer_shadow_{name}"
            and labels.items() <= sample.labels.items()
        )

    def start(self) -> None:
        assert self.plane.shadow_thread is not None
        self.plane.shadow_thread.start(lambda: None)

    def stop(self) -> None:
        assert self.plane.shadow_thread is not None
        self.plane.shadow_thread.stop()


def test_what_waits_runs_when_a_slot_is_idle_and_the_rest_was_dropped(ranker: Ranker) -> None:
    place = Place(ranker)
    for seed in range(MOST_WAITING + 6):
        place.ask(seed=seed)
    assert place.counted("dropped_requests_total", reason="full") == 6
    busy, looked, gate = threading.Event(), threading.Event(), threading.Event()

    def occupy() -> None:
        busy.set()
        assert gate.wait(60.0)

    def run_idle(*arguments: Any) -> bool:
        found = run_idle_before(*arguments)
        looked.set()
        return found

    queue = VersionQueue(BatchingPolicy(BatchingMode.INLINE), {1: 0.001})
    place.plane.dispatcher.add_queue(queue)
    place.plane.dispatcher.remove_queue(queue)
    request = QueuedRequest(queue, samples=1, arrived=0.0)
    run_idle_before = place.plane.dispatcher.run_idle
    occupier = threading.Thread(target=run_idle_before, args=(request, occupy))
    occupier.start()
    assert busy.wait(60.0)
    place.plane.dispatcher.run_idle = run_idle  # type: ignore[method-assign]
    place.start()
    try:
        # It has looked for an idle slot, and there is none.
        assert looked.wait(60.0)
        assert place.counted("requests_total") == 0
        gate.set()
        occupier.join()
        until(lambda: place.counted("requests_total", code="OK") == MOST_WAITING, "all run")
        place.ask()
        until(lambda: place.counted("requests_total", code="OK") == MOST_WAITING + 1, "one more")
    finally:
        gate.set()
        place.stop()
    # The same weights score the same bits when requests run alone.
    assert place.counted("score_difference_sum") == 0
    assert place.counted("score_difference_bucket", le="0.0", output="score") == 2 * (
        MOST_WAITING + 1
    )


def request_of(place: Place, message: bytes, **scores: Any) -> ShadowRequest:
    return ShadowRequest(place.default, INFER_CODEC, message, len(message), 2, scores, 0.001)


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
