"""Metrics of a shadow's scores, beside NumPy's figures of the same scores."""

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client.registry import Collector

from serving.metrics.families.model_families import SCORE_BOUNDARIES
from serving.metrics.families.shadow_families import DIFFERENCE_BOUNDARIES, DROPS
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.shadow_metrics import WINDOW_SECONDS, ShadowMetrics
from serving.metrics.version_info import VersionInfo

NAN, INF = float("nan"), float("inf")


def shadow_of(metrics: ServerMetrics, version: int = 2) -> ShadowMetrics:
    counters = metrics.version("ranker", version)
    counters.describe(VersionInfo(0.1, (1,), ("score", "labels")))
    assert counters.shadows is not None
    return counters.shadows


def shown(registry: Collector, name: str, **labels: str) -> dict[str, float]:
    """A family's samples by the label that is not given."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            if (
                sample.name == f"sharded_infer_shadow{name}"
                and labels.items() <= dict(sample.labels).items()
            ):
                rest = {k: v for k, v in sample.labels.items() if k not in labels}
                (value,) = [v for k, v in rest.items() if k not in ("model", "version")] or [""]
                found[value] = sample.value
    return found


def count(shadow: ShadowMetrics, one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    shadow.scored({0: (one, other)}, default_seconds=0.001, seconds=0.002, now=1.0)


def scores(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


@pytest.mark.parametrize("shape", [(7,), (5, 3), (1,)])
def test_differences_and_distributions_are_numpys(shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(4)
    metrics = ServerMetrics(shadows=True)
    shadow = shadow_of(metrics)
    pairs = [
        (generator.random(shape, np.float32), generator.random(shape, np.float32) ** 2)
        for _ in range(40)
    ]
    for one, other in pairs:
        count(shadow, one, other)
    before, after = (np.concatenate([p[at].ravel() for p in pairs]) for at in (0, 1))
    differences = np.abs(before.astype(np.float64) - after)
    registry, output = metrics.registry, {"output": "score"}
    assert shown(registry, "_score_difference_count", **output) == {"": differences.size}
    (total,) = shown(registry, "_score_difference_sum", **output).values()
    assert total == pytest.approx(differences.sum())
    assert shown(registry, "_largest_score_difference", **output) == {"": differences.max()}
    counted = [
        np.array(list(shown(registry, f"_{name}scores_bucket", **output).values())[:-1])
        for name in ("default_", "")
    ]
    at = np.array(SCORE_BOUNDARIES)
    exact = [np.searchsorted(np.sort(s), at, side="right") for s in (before, after)]
    assert all((a == b).all() for a, b in zip(counted, exact, strict=True))
    # The statistic of all scores is at least that at the boundaries, and within a bucket's share.
    every = np.union1d(before, after)
    shares = [np.searchsorted(np.sort(s), every, side="right") / s.size for s in (before, after)]
    statistic = np.abs(shares[0] - shares[1]).max()
    seen = np.abs(counted[0] - counted[1]).max() / before.size
    fullest = max(np.diff(c, prepend=0).max() for c in counted) / before.size
    assert statistic - fullest <= seen <= statistic


def test_what_is_no_number_is_far_unless_both_are_the_same() -> None:
    metrics = ServerMetrics(shadows=True)
    count(shadow_of(metrics), scores(NAN, INF, 1.0, NAN, 2.0), scores(NAN, INF, 1.5, 1.0, -INF))
    output = {"output": "score"}
    buckets = shown(metrics.registry, "_score_difference_bucket", **output)
    assert (buckets["0.0"], buckets["0.5"]) == (2, 3)
    assert buckets[f"{DIFFERENCE_BOUNDARIES[-1]}"] == 3 and buckets["+Inf"] == 5
    assert shown(metrics.registry, "_score_difference_sum", **output) == {"": 0.5}
    assert shown(metrics.registry, "_largest_score_difference", **output) == {"": INF}


def test_times_codes_and_drops_are_counted() -> None:
    metrics = ServerMetrics(shadows=True)
    shadow = shadow_of(metrics)
    shadow.shadowing(True)
    count(shadow, scores(1.0), scores(1.0))
    shadow.failed("INVALID_ARGUMENT")
    for number, reason in enumerate(DROPS, start=1):
        shadow.dropped(reason, number)
    registry = metrics.registry
    assert shown(registry, "ing") == {"": 1}
    assert shown(registry, "_requests_total") == {"OK": 1, "INVALID_ARGUMENT": 1}
    assert shown(registry, "_dropped_requests_total") == dict(zip(DROPS, range(1, 6), strict=True))
    assert shown(registry, "_seconds_sum") == {"default": 0.001, "shadow": 0.002}


def test_what_was_largest_is_forgotten_when_time_passes_and_when_the_shadow_goes() -> None:
    metrics = ServerMetrics(shadows=True)
    shadow = shadow_of(metrics)
    for forget in (lambda: shadow.look(1000.0), lambda: shadow.shadowing(False)):
        count(shadow, scores(1.0), scores(3.0))
        assert shown(metrics.registry, "_largest_score_difference", output="score") == {"": 2}
        forget()
        assert shown(metrics.registry, "_largest_score_difference", output="score") == {"": 0}


def test_the_largest_difference_is_of_this_window_and_the_one_before() -> None:
    metrics = ServerMetrics(shadows=True)
    shadow = shadow_of(metrics)
    generator = np.random.default_rng(0)
    times = np.cumsum(generator.exponential(WINDOW_SECONDS / 3, 100))
    values = generator.random(100, np.float32)
    windows = times // WINDOW_SECONDS
    for at, (time, value) in enumerate(zip(times.tolist(), values, strict=True)):
        pair = (scores(0.0), scores(value))
        shadow.scored({0: pair}, default_seconds=0.001, seconds=0.002, now=time)
        near = windows[: at + 1] >= windows[at] - 1
        largest = shown(metrics.registry, "_largest_score_difference", output="score")
        assert largest == {"": values[: at + 1][near].max()}


def test_only_a_version_that_was_a_shadow_is_shown() -> None:
    metrics = ServerMetrics(shadows=True)
    metrics.version("ranker", 1)
    shadow = shadow_of(metrics)
    assert shown(metrics.registry, "_dropped_requests_total") == {}
    shadow.shadowing(True)
    assert shown(metrics.registry, "ing", version="2") == {"": 1}
    assert shown(metrics.registry, "_dropped_requests_total", version="2") == dict.fromkeys(
        DROPS, 0
    )
    assert shown(metrics.registry, "_dropped_requests_total", version="1") == {}


def test_a_server_without_shadows_has_no_cells_and_no_families_for_them() -> None:
    metrics = ServerMetrics()
    assert metrics.version("ranker", 1).shadows is None
    assert not [f.name for f in metrics.registry.collect() if "shadow" in f.name]
