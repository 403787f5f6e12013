"""Differences of scores from the fp32 model's, by output."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ScoreDifference", "largest_difference", "score_differences"]

_Scores = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """The difference of one output, in the score's unit.

    Attributes:
        largest: absolute difference of any score; infinity if any is NaN.
        magnitude: root mean square of the fp32 model's scores.
    """

    largest: float
    magnitude: float

    @property
    def relative(self) -> float:
        """The largest difference as a share of the magnitude; 0 without a difference."""
        if not self.largest:
            return 0.0
        return self.largest / self.magnitude if self.magnitude else float("inf")


def score_differences(expected: _Scores, got: _Scores) -> dict[str, ScoreDifference]:
    """Compare scores of the same outputs and shapes with the fp32 model's."""
    found = {}
    for name, scores in expected.items():
        exact = scores.astype(np.float64)
        largest = float(np.abs(exact - got[name]).max(initial=0.0))
        magnitude = float(np.sqrt(np.square(exact).mean())) if exact.size else 0.0
        found[name] = ScoreDifference(
            largest if np.isfinite(largest) else float("inf"),
            magnitude if np.isfinite(magnitude) else 0.0,
        )
    return found


def largest_difference(expected: _Scores, got: _Scores) -> float:
    """The largest absolute difference of any score; infinity if any is NaN."""
    return max((d.largest for d in score_differences(expected, got).values()), default=0.0)
