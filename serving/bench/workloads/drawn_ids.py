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
    return scattered(zipf_ranks(generator, ZIPF, rows, count), rows)


def zipf_ranks(
    generator: np.random.Generator, exponent: float, rows: int, count: int
) -> NDArray[np.int64]:
    """Draws ranks by Zipf's law, 1 that of the row that is used most: int64 `[count]`."""
    # The inverse of the cumulative frequencies, sums taken as integrals.
    draws, power = generator.random(count), 1 - exponent
    if abs(power) < 1e-9:
        numbers = np.exp(draws * np.log(rows))
    else:
        numbers = (draws * (rows**power - 1) + 1) ** (1 / power)
    ranks: NDArray[np.int64] = numbers.astype(np.int64)
    return ranks


def scattered(ranks: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The ids of ranks: each rank below the number of rows has another one."""
    ids: NDArray[np.int64] = ranks * _SCATTER % rows
    return ids
