"""Significance of differences, beside exact sums."""

from math import comb

import pytest

from serving.remote.promotion.chance import highest_share, is_beyond_chance


@pytest.mark.parametrize("total", [1, 2, 10, 99, 400])
@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.99])
def test_a_count_is_beyond_chance_where_the_exact_sum_is_below_a_thousandth(
    total: int, share: float
) -> None:
    for count in range(total + 1):
        tail = range(count, total + 1)
        exact = sum(comb(total, k) * share**k * (1 - share) ** (total - k) for k in tail)
        if not 0.000999 < exact < 0.001001:
            assert is_beyond_chance(count, total, share) == (exact < 0.001), count


@pytest.mark.parametrize(
    ("count", "total", "share", "beyond"),
    [
        (0, 0, 0.0, False),
        (0, 10, 0.0, False),
        (1, 10, 0.0, True),
        (10, 10, 1.0, False),
        (10**7, 10**9, 0.01, False),
        (10_010_500, 10**9, 0.01, True),
    ],
)
def test_shares_of_none_and_all_and_large_numbers(
    count: int, total: int, share: float, beyond: bool
) -> None:
    assert is_beyond_chance(count, total, share) == beyond


def test_the_upper_end_of_a_share_lies_above_it_and_comes_closer() -> None:
    assert highest_share(0, 0) == 1.0
    assert highest_share(1, 100) == pytest.approx(0.0545, abs=1e-4)  # Wilson's, from tables
    ends = [highest_share(total / 100, total) for total in (100, 10_000, 1_000_000)]
    assert ends == sorted(ends, reverse=True) and 0.01 < ends[-1] < 0.0103
