"""Random ids: uniform, or with Zipf frequencies as in real traffic."""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

ZIPF = 1.05
# A prime: the most used rows then lie anywhere in a table, not at its beginning.
_SCATTER = 2_654_435_761


class IdDistribution(StrEnum):
    """Distribution of a table's ids."""

    UNIFORM = "uniform"
    ZIPF = "zipf"


def draw_ids(
    generator: np.random.Generator, distribution: IdDistribution, rows: int, count: int
) -> NDArray[np.int64]:
    """Draws ids of one table.

    Args:
        distribution: uniform, or Zipf's with the exponent `ZIPF`.

    Returns:
        int64 `[count]`, all in `[0, rows)`.
    """
    if distribution is IdDistribution.UNIFORM:
        return generator.integers(0, rows, count)
    # The inverse of the cumulative frequencies, sums taken as integrals.
    power = 1 - ZIPF
    ranks = (generator.random(count) * (rows**power - 1) + 1) ** (1 / power)
    ids: NDArray[np.int64] = ranks.astype(np.int64) * _SCATTER % rows
    return ids
