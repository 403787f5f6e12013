import numpy as np
import pytest

from serving.metrics.families.model_families import SCORE_BOUNDARIES
from serving.metrics.families.request_families import LATENCY_BOUNDARIES
from serving.remote.promotion.histogram import Histogram, binned, histogram_of


def of_values(values: np.ndarray, boundaries: tuple[float, ...], least: float) -> Histogram:
    series = {str(boundary): float((values <= boundary).sum()) for boundary in boundaries}
    return histogram_of({**series, "+Inf": float(len(values))}, least=least)


def test_quantiles_and_shares_are_near_those_of_the_values() -> None:
    values = np.random.default_rng(0).lognormal(-6, 1, 100_000)
    histogram = of_values(values, LATENCY_BOUNDARIES, 0.0)
    assert histogram.count == 100_000
    for share in (0.5, 0.9, 0.99):
        exact = float(np.quantile(values, share))
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.05)
        assert histogram.above(exact) == pytest.approx(100_000 * (1 - share), rel=0.2)


def test_mean_and_deviation_are_near_those_of_the_values() -> None:
    values = np.random.default_rng(0).beta(2, 5, 100_000)
    mean, deviation = of_values(values, SCORE_BOUNDARIES, -np.inf).mean_and_deviation()
    assert mean == pytest.approx(values.mean(), abs=0.01)
    assert deviation == pytest.approx(values.std(), rel=0.1)


def test_values_beyond_the_boundaries_are_counted_at_them() -> None:
    values = np.array([-1e9, 1e9, np.nan])
    histogram = of_values(values, SCORE_BOUNDARIES, -np.inf)
    assert histogram.mean_and_deviation()[0] == pytest.approx(100 / 3)
    assert (histogram.quantile(0), histogram.quantile(1)) == (-100, 100)


def test_an_empty_histogram_says_nothing() -> None:
    empty = Histogram()
    assert (empty.count, empty.quantile(0.5), empty.above(1)) == (0, 0, 0)
    assert empty.mean_and_deviation() == (0, 0)


def test_bins_of_numbers_that_are_equal_or_large_or_none() -> None:
    large = np.full(3, 3e38, np.float32)
    counts, edges = binned([large, large[:1]], 4)
    assert [sum(own) for own in counts] == [3, 1] and len(edges) == 5
    near = np.array([1.0, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    counts, edges = binned([near], 200)
    assert sum(counts[0]) == 2 and edges[0] == 1.0 < edges[-1]
    assert binned([large[:0], large[:0]], 4) == ([[], []], [])
