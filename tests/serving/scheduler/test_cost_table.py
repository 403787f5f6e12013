import random
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduler.batching import BatchingPolicy
from serving.scheduler.version_queue import Costs, VersionQueue
from tests.serving.scheduler.batcher_simulation import Curve, fixed, linear, measured, mixed


def costs_of(measured: Mapping[int, float]) -> Costs:
    """The cost table of a queue that starts with these timings."""
    return VersionQueue(BatchingPolicy(), measured).costs


TABLES = st.dictionaries(st.integers(1, 2048), st.floats(1e-5, 1.0), min_size=1, max_size=12)


@given(TABLES, st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-6, 10.0)), max_size=5))
def test_more_samples_never_cost_less(
    table: dict[int, float], timings: list[tuple[int, float]]
) -> None:
    costs = costs_of(table)
    assert all(costs.predicted(size) <= seconds for size, seconds in table.items())
    for samples, seconds in timings:
        costs.observe(samples, seconds, 0.0)
    learnt = [costs.predicted(samples) for samples in range(1, 2100, 7)]
    assert all(fewer <= more * 1.000001 for fewer, more in pairwise(learnt))


@given(TABLES, st.integers(1, 5000), st.floats(1e-6, 10.0))
def test_a_timing_moves_the_prediction_towards_it_and_not_past_it(
    table: dict[int, float], samples: int, seconds: float
) -> None:
    costs = costs_of(table)
    before = costs.predicted(samples)
    costs.observe(samples, seconds, 0.0)
    low, high = sorted((before, seconds))
    assert low * 0.999 <= costs.predicted(samples) <= high * 1.001
    if not 0.5 < seconds / before < 2.0:
        assert costs.predicted(samples) != before


@pytest.mark.parametrize("factor", [0.5, 1.8])
def test_twenty_batches_teach_most_of_a_change(factor: float) -> None:
    costs = costs_of({8: 1.0})
    for _ in range(20):
        costs.observe(8, factor, 0.0)
    assert abs(costs.predicted(8) - factor) <= 0.15 * abs(1.0 - factor)


@pytest.mark.parametrize("curve", [linear, fixed, mixed])
@pytest.mark.parametrize("factor", [1 / 3, 3.0])
def test_a_table_that_is_off_learns_the_curve(curve: Curve, factor: float) -> None:
    generator = random.Random(1)
    costs = costs_of(measured(curve, factor=factor))
    for _ in range(4000):
        samples = round(2 ** generator.uniform(0, 10))
        costs.observe(samples, curve(samples) * generator.uniform(0.95, 1.05), 0.0)
    for samples in (1, 3, 10, 50, 270, 700, 1024):
        assert costs.predicted(samples) == pytest.approx(curve(samples), rel=0.1)


def test_a_size_that_a_hiccup_made_look_dear_is_forgiven() -> None:
    warm = {16: 0.23e-3, 32: 0.35e-3, 64: 0.55e-3}
    costs = costs_of(warm)
    costs.observe(32, 4 * warm[32], 0.0)
    assert costs.predicted(32) > 2 * warm[32]
    # Two of 16 would not be merged any more, so 32 is never seen again.
    for batch in range(100):
        costs.observe(16, 1.1 * warm[16], 0.01 * batch)
    assert costs.predicted(32) > 2 * warm[32], "what was seen a moment ago is believed"
    for batch in range(100, 160):
        costs.observe(16, 1.1 * warm[16], 0.01 * batch)
    assert costs.predicted(32) == pytest.approx(1.1 * warm[32], rel=0.02)
    assert costs.predicted(64) == pytest.approx(warm[64])


def test_sizes_that_do_not_run_follow_one_that_costs_less_than_at_warm_up() -> None:
    # Samples of the warm-up share no history, and those of a request do.
    warm = {64: 0.5e-3, 128: 1.0e-3, 256: 2.0e-3}
    costs = costs_of(warm)
    for batch in range(160):
        costs.observe(128, 0.3 * warm[128], 0.01 * batch)
    assert costs.predicted(128) == pytest.approx(0.3 * warm[128], rel=0.02)
    assert costs.predicted(256) == pytest.approx(0.3 * warm[256], rel=0.02)
    costs.observe(256, 0.9 * warm[256], 1.6)
    assert costs.predicted(256) > 0.5 * warm[256]


def test_a_size_that_is_dear_is_believed_as_long_as_it_runs() -> None:
    costs = costs_of({16: 1e-3, 32: 2e-3})
    for batch in range(1000):
        costs.observe(16, 1e-3, 0.01 * batch)
        costs.observe(32, 6e-3, 0.01 * batch)
    assert costs.predicted(32) == pytest.approx(6e-3, rel=0.05)
