from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from serving.inference.shadows.shadow_request import ShadowRequest
from serving.inference.shadows.shadows import MOST_WAITING, MOST_WAITING_BYTES, Shadows
from serving.metrics.families.shadow_families import SHADOW_DROPPED, SHADOWING
from serving.metrics.server_metrics import ServerMetrics
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors

MAX_BATCH = 8
LATER = 1.0


class Place:
    """Versions of two models, the shadows of one label, and a stopped clock."""

    def __init__(self, share: float = 1.0, seed: int = 1) -> None:
        self.metrics = ServerMetrics(shadows=True)
        self.now = 100.0
        self.shadows = Shadows("canary", share, Random(seed).random, lambda: self.now)
        self.one, self.two, self.three = (self._version("ranker", n) for n in (1, 2, 3))
        self.other = self._version("other", 7)

    def _version(self, model: str, number: int) -> Any:
        spec = SimpleNamespace(serving=SimpleNamespace(max_batch=MAX_BATCH))
        metrics = self.metrics.version(model, number)
        return SimpleNamespace(model=SimpleNamespace(name=model, spec=spec), metrics=metrics)

    def names(self, default: Any, canary: Any = None) -> None:
        named = {("ranker", ""): default, ("ranker", "1"): default, ("other", ""): self.other}
        if canary is not None:
            named["ranker", "canary"] = canary
        self.shadows.set_names(named)

    def request(self, version: Any = None, **fields: Any) -> ShadowRequest:
        known: dict[str, Any] = {"message": bytes(10), "samples": 1, "scores": {}, "seconds": 0.0}
        known["read"] = Any
        return ShadowRequest(version or self.one, **{**known, **fields})

    def taken(self) -> list[Any]:
        found = []
        while (one := self.shadows.take()) is not None:
            found.append(one)
        return found

    def dropped(self, version: Any) -> dict[str, float]:
        cell = version.metrics.block.cell
        cells = {r: cell(SHADOW_DROPPED, r) for r in SHADOW_DROPPED.label_values}
        counted = {r: version.metrics._cells.total(c) for r, c in cells.items()}
        return {reason: count for reason, count in counted.items() if count}

    def is_shadow(self, version: Any) -> bool:
        return bool(version.metrics._cells.total(version.metrics.block.cell(SHADOWING)))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_is_chosen_of_requests_that_name_no_version(share: float) -> None:
    place = Place(share)
    place.names(place.one, place.two)
    chosen = [place.shadows.chosen(place.one, "") for _ in range(2000)]
    expected = Random(1)
    assert chosen == [expected.random() < share for _ in range(2000)]
    assert sum(chosen) == pytest.approx(2000 * share, abs=100)
    assert not any(place.shadows.chosen(place.one, name) for name in ("1", "stable") * 50)


def test_a_version_without_a_shadow_has_no_request_chosen() -> None:
    place = Place()
    assert not place.shadows.any and not place.shadows.chosen(place.one, "")
    place.names(place.one)
    assert not place.shadows.any and not place.shadows.chosen(place.one, "")
    place.names(place.one, place.one)
    assert not place.shadows.any and not place.shadows.chosen(place.one, "")
    place.names(place.one, place.two)
    assert place.shadows.any and place.shadows.chosen(place.one, "")
    assert not place.shadows.chosen(place.other, "") and not place.shadows.chosen(place.two, "")


def test_requests_run_in_order_when_their_answers_have_left() -> None:
    place = Place()
    place.names(place.one, place.two)
    requests = [place.request() for _ in range(3)]
    for request in requests:
        place.shadows.offer(request)
    assert place.shadows.offered.is_set()
    assert place.taken() == []
    ready = place.shadows.ready_at()
    assert ready is not None and ready > place.now
    place.now = ready
    assert place.taken() == [(request, place.two) for request in requests]
    assert place.shadows.ready_at() is None


def test_a_full_queue_drops_and_counts() -> None:
    place = Place()
    place.names(place.one, place.two)
    for _ in range(MOST_WAITING + 5):
        place.shadows.offer(place.request())
    place.now += LATER
    assert len(place.taken()) == MOST_WAITING
    assert place.dropped(place.two) == {"full": 5}
    # There is room again, as far as its bytes go.
    for _ in range(3):
        place.shadows.offer(place.request(message=bytes(MOST_WAITING_BYTES // 2)))
    place.now += LATER
    assert len(place.taken()) == 2
    assert place.dropped(place.two) == {"full": 6}
    place.shadows.offer(place.request(message=bytes(MOST_WAITING_BYTES)))
    assert place.shadows.ready_at() is not None


def test_large_requests_and_those_with_default_rows_are_left_out() -> None:
    place = Place()
    place.names(place.one, place.two)
    place.shadows.offer(place.request(samples=MAX_BATCH))
    place.shadows.offer(place.request(samples=MAX_BATCH + 1))
    place.shadows.offer(place.request(has_defaults=True))
    memory, header = RequestTensors(None), RequestHeader("ranker", "", "")
    assert place.shadows.kept(b"message", place.one, header, memory) == b"message"
    memory.bytes_read = 8
    assert place.shadows.kept(b"message", place.one, header, memory) is None
    place.now += LATER
    assert len(place.taken()) == 1
    assert place.dropped(place.two) == {"large": 1, "default_rows": 1, "shared_memory": 1}


def test_requests_that_wait_are_dropped_when_label_or_default_moves() -> None:
    place = Place()
    place.names(place.one, place.two)
    assert place.is_shadow(place.two)
    place.shadows.offer(place.request())
    place.names(place.one, place.two)
    place.shadows.offer(place.request())
    # The label moves.
    place.names(place.one, place.three)
    assert place.dropped(place.two) == {"moved": 2}
    assert (place.is_shadow(place.two), place.is_shadow(place.three)) == (False, True)
    place.shadows.offer(place.request())
    # It is taken away.
    place.names(place.one)
    assert place.dropped(place.three) == {"moved": 1} and not place.is_shadow(place.three)
    place.names(place.one, place.two)
    place.shadows.offer(place.request())
    # The default moves, and answers that were on their way have no shadow.
    place.names(place.three, place.two)
    place.shadows.offer(place.request())
    assert place.dropped(place.two) == {"moved": 3}
    place.shadows.offer(place.request(place.three))
    place.now += LATER
    assert [shadow for _, shadow in place.taken()] == [place.two]
