from array import array
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.core import Metric

from serving.dashboard.plans import Plans
from serving.dashboard.reading import KEPT_SECONDS, History, Reading, read_metrics
from serving.dashboard.swaps import Swap, Swaps
from serving.versions.state import DesiredState, Failure, ModelState
from tests.serving.dashboard.test_dashboard import Clock, assigned_version, clock
from tests.support.servers import MODEL, Ranker

__all__ = ["clock"]


def empty(at: float, _: Reading | None) -> Reading:
    return Reading(at, (), array("d"), {})


def test_the_history_is_bounded_in_time_and_in_number(clock: Clock) -> None:
    history = History(empty, clock)
    for _ in range(2000):
        clock.now += 1.0
        history.newest()
    kept = history.since(0)
    assert kept[-1].at == clock.now and kept[0].at >= clock.now - KEPT_SECONDS
    assert 250 <= len(kept) <= 320
    assert all(b.at - a.at >= 1.0 for a, b in pairwise(kept))


def test_a_clock_that_was_set_back_begins_a_new_history(clock: Clock) -> None:
    history = History(empty, clock)
    history.newest()
    clock.now -= 3600
    assert history.newest().at == clock.now
    assert [reading.at for reading in history.since(0)] == [clock.now]


def test_series_with_boundaries_of_their_own_keep_them() -> None:
    metric = Metric("sharded_infer_request_seconds", "Time.", "histogram")
    for version, uppers in (("1", ("0.1", "+Inf")), ("2", ("0.1", "0.2", "+Inf"))):
        for total, upper in enumerate(uppers, start=1):
            labels = {"version": version, "le": upper}
            metric.add_sample("sharded_infer_request_seconds_bucket", labels, float(total))
        metric.add_sample("sharded_infer_request_seconds_sum", {"version": version}, 0.5)
    reading = read_metrics([metric], 1.0)
    first, second = (("sharded_infer_request_seconds", (("version", v),)) for v in "12")
    assert reading.values() == {first: (2.0, 0.5, 1.0, 1.0), second: (3.0, 0.5, 1.0, 1.0, 1.0)}
    assert {s.key: s.boundaries for s in reading.series} == {first: (0.1,), second: (0.1, 0.2)}


def total(**by_version: float) -> Metric:
    metric = Metric("sharded_infer_samples", "Samples.", "counter")
    for version, value in by_version.items():
        metric.add_sample("sharded_infer_samples_total", {"version": version}, value)
    return metric


def test_readings_in_a_row_share_all_but_their_numbers() -> None:
    first = read_metrics([total(v1=1.0, v2=2.0)], 1.0)
    second = read_metrics([total(v1=3.0, v2=4.0)], 2.0, first)
    assert second.series is first.series and second.families is first.families
    assert list(second.values().values()) == [3.0, 4.0]
    # One version goes, and one comes.
    third = read_metrics([total(v2=5.0, v3=6.0)], 3.0, second)
    assert third.series[0] is first.series[1] and third.families is first.families
    assert [labels for _, labels in third.values()] == [(("version", v),) for v in ("v2", "v3")]


def test_what_is_no_number_is_left_out() -> None:
    metric = Metric("sharded_infer_hot_row_share", "Share.", "gauge")
    for version, value in (("1", float("nan")), ("2", float("inf")), ("3", 0.5)):
        metric.add_sample("sharded_infer_hot_row_share", {"version": version}, value)
    reading = read_metrics([metric], 1.0)
    assert list(reading.values().values()) == [0.5]
    assert reading.by_label("sharded_infer_hot_row_share", "version") == {"3": 0.5}


def seen(swaps: Swaps, model: ModelState, at: float = 7.0) -> list[Swap]:
    before = len(swaps.recent())
    swaps.see(DesiredState({model.model: model}), at, lambda _: {"open": 0.5, "fetch": 0.0})
    return swaps.recent()[before:]


def test_swaps_are_what_differs_on_the_shared_state() -> None:
    swaps, model = Swaps(), ModelState(MODEL, assigned=(assigned_version(1, 1, ready=False),))
    assert seen(swaps, model) == []
    model = replace(model, assigned=(assigned_version(1, 1),), names={"": 1})
    loaded, named = seen(swaps, model)
    assert (loaded.event, loaded.version, loaded.phases) == ("loaded", 1, {"open": 0.5})
    assert (named.event, named.name, named.previous) == ("named", "default", 0)
    assert seen(swaps, model) == []
    model = replace(model, assigned=(assigned_version(1, 1), assigned_version(2, 2)), names={"": 2})
    assert [(s.event, s.version, s.previous) for s in seen(swaps, model)] == [
        ("loaded", 2, 0), ("named", 2, 1),
    ]  # fmt: skip
    model = replace(model, assigned=(assigned_version(2, 2), assigned_version(3, 3, ready=False)))
    assert [(s.event, s.version) for s in seen(swaps, model)] == [("unloaded", 1)]
    (failed,) = seen(swaps, model.failed(Failure(3, "golden", "scores differ", "x")))
    assert (failed.event, failed.version, failed.phase, failed.reason) == (
        "failed", 3, "golden", "scores differ",
    )  # fmt: skip


def test_plans_are_drawn_once_and_forgotten_with_their_versions(ranker: Ranker) -> None:
    plans, version = Plans(None), assigned_version(1, 1, path=ranker.model.artifact.path)
    plans.draw([version])
    drawn = plans.get(version.path)
    assert drawn is not None and drawn.table_bytes > 0
    plans.draw([version])
    assert plans.get(version.path) is drawn
    plans.draw([])
    assert plans.get(version.path) is None


@pytest.mark.parametrize(
    ("topology", "change", "reason"),
    [
        ("cpu:77", {}, "no plan for topology"),
        (None, {"path": "/nowhere"}, "so no published version"),
        (None, {"digest": "0"}, "its manifest has changed since it was verified"),
    ],
)
def test_a_plan_that_cannot_be_read_is_a_sentence(
    ranker: Ranker, topology: str | None, change: dict[str, Any], reason: str
) -> None:
    plans, version = (
        Plans(topology),
        replace(assigned_version(1, 1, path=ranker.model.artifact.path), **change),
    )
    plans.draw([version])
    drawn = plans.get(version.path)
    assert drawn is not None and drawn.topology == ""
    assert drawn.content.body.startswith(b"<p>The plan cannot be shown: ")
    assert reason in drawn.content.body.decode()
