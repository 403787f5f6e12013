"""A generator of click logs, for trials without a real log."""

import numpy as np
from numpy.typing import NDArray

from serving.demo.criteo import CATEGORY_COUNT, DENSE_COUNT, ClickLog

# Distinct values of each category: a few small counts, as in the real log, and long tails.
_CARDINALITIES = (
    1400, 550, 30000, 15000, 300, 20, 12000, 600, 3, 50000, 5000, 30000, 3000,
    26, 11000, 28000, 10, 4700, 2000, 4, 30000, 18, 15, 20000, 100, 15000,
)  # fmt: skip
# Every fourth field is often empty, the others rarely; the first never is.
_EMPTY_SHARES = (0.0, 0.02, 0.05, 0.4)
_ZIPF_EXPONENT = 1.1
_CATEGORY_WEIGHT = 0.4
_DENSE_WEIGHT = 0.2
_CLICK_SHARE = 0.25


def generated_clicks(rows: int, seed: int) -> ClickLog:
    """Draw a click log of `rows` synthetic lines; the same `seed` draws the same log.

    Categories follow Zipf's law, integers are rounded log-normals with a few -1, and some of both
    are empty. About a quarter of the lines are clicks, drawn from a logistic model over a hidden
    weight for each category and for the logarithm of each integer.
    """
    generator = np.random.default_rng(seed)
    log_odds = np.zeros(rows)
    categories = np.empty((rows, CATEGORY_COUNT), "S8")
    for column, cardinality in enumerate(_CARDINALITIES):
        numbers = generator.choice(2**32, size=cardinality, replace=False)
        names = np.array([f"{number:08x}" for number in numbers.tolist()], "S8")
        popularity = np.arange(1, cardinality + 1) ** -_ZIPF_EXPONENT
        drawn = generator.choice(cardinality, size=rows, p=popularity / popularity.sum())
        present = generator.random(rows) >= _EMPTY_SHARES[column % len(_EMPTY_SHARES)]
        categories[:, column] = np.where(present, names[drawn], b"")
        weights = generator.normal(scale=_CATEGORY_WEIGHT, size=cardinality)
        log_odds += weights[drawn] * present
    dense = np.empty((rows, DENSE_COUNT), np.int64)
    dense_present = np.empty((rows, DENSE_COUNT), np.bool_)
    for column in range(DENSE_COUNT):
        location, scale = generator.uniform(0.5, 4.0), generator.uniform(0.8, 1.8)
        logarithms = generator.normal(location, scale, rows)
        present = generator.random(rows) >= _EMPTY_SHARES[column % len(_EMPTY_SHARES)]
        # Minus 1: a small draw becomes the -1 that real logs have too.
        dense[:, column] = np.rint(np.expm1(logarithms)) * present
        dense_present[:, column] = present
        weight = generator.normal(scale=_DENSE_WEIGHT)
        log_odds += weight * (logarithms - location) * present
    probabilities = 1.0 / (1.0 + np.exp(-log_odds - _intercept(log_odds)))
    return ClickLog(
        labels=(generator.random(rows) < probabilities).astype(np.float32),
        dense=dense,
        dense_present=dense_present,
        categories=categories,
    )


def _intercept(log_odds: NDArray[np.float64]) -> float:
    """Find the constant that makes the mean probability `_CLICK_SHARE`, by bisection."""
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        share = float(np.mean(1.0 / (1.0 + np.exp(-log_odds - middle))))
        low, high = (middle, high) if share < _CLICK_SHARE else (low, middle)
    return low
