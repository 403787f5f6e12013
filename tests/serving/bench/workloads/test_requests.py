import numpy as np
import pytest

from serving.bench.workloads.requests import scattered, zipf_ranks


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.05])
def test_ranks_are_drawn_by_zipfs_law(exponent: float) -> None:
    ranks = zipf_ranks(np.random.default_rng(1), exponent, 1000, 200_000)
    assert ranks.min() >= 1 and ranks.max() < 1000
    counts = np.bincount(ranks, minlength=1000)
    assert counts[10] / counts[100] == pytest.approx(10**exponent, rel=0.15)
    ids = scattered(np.arange(1000), 1000)
    assert sorted(ids.tolist()) == list(range(1000))
