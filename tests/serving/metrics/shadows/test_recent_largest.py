import numpy as np
import pytest

from serving.metrics.shadows.recent_largest import WINDOW_SECONDS, RecentLargest


def test_without_values_it_is_zero() -> None:
    assert RecentLargest().value(1e6) == 0.0


def test_a_value_stays_for_its_window_and_the_next() -> None:
    recent = RecentLargest()
    recent.add(3.0, 10 * WINDOW_SECONDS + 1)
    recent.add(1.0, 11 * WINDOW_SECONDS + 1)
    assert recent.value(12 * WINDOW_SECONDS - 1) == 3.0
    assert recent.value(12 * WINDOW_SECONDS + 1) == 1.0
    assert recent.value(13 * WINDOW_SECONDS + 1) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_largest_of_this_window_and_the_one_before(seed: int) -> None:
    generator = np.random.default_rng(seed)
    times = np.cumsum(generator.exponential(WINDOW_SECONDS / 3, 100))
    values = generator.random(100)
    windows = times // WINDOW_SECONDS
    recent = RecentLargest()
    for at, (time, value) in enumerate(zip(times, values, strict=True)):
        recent.add(value, time)
        near = windows[: at + 1] >= windows[at] - 1
        assert recent.value(time) == values[: at + 1][near].max()
