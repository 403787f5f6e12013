"""Differences of scores from the fp32 model's, by output."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["ScoreDifference", "largest_difference", "score_differences", "score_gaps"]

_Scores = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """The difference of one output, in the score's unit.

    Attributes:
        largest: absolute difference of any score; infinity if any is NaN.
        magnitude: root mean square of the fp32 model's scores.
        of_samples: the largest of each sample, `[B]`; None: they were not kept.
    """

    largest: float
    magnitude: float
    of_samples: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)

    @property
    def relative(self) -> float:
        """The largest difference as a share of the magnitude; 0 without a difference."""
        if not self.largest:
            return 0.0
        return self.largest / self.magnitude if self.magnitude else float("inf")

    def worst(self, bound: float, traits: Callable[[NDArray[np.bool_]], str]) -> str:
        """Words on the sample with the largest difference, and on those beyond a bound.

        `traits` says, of a mask `[B]`, what these samples share.
        """
        if self.of_samples is None:
            return ""
        beyond = ~(self.of_samples <= bound)
        place = int(np.nan_to_num(self.of_samples, nan=np.inf).argmax())
        return (
            f" (sample {place} the most, {beyond.sum()} of {len(beyond)} beyond the bound"
            f"{traits(beyond)})"
        )


def score_differences(expected: _Scores, got: _Scores) -> dict[str, ScoreDifference]:
    """Compare scores of the same outputs and shapes with the fp32 model's."""
    found = {}
    for name, scores in expected.items():
        exact = scores.astype(np.float64)
        differences = np.abs(exact - got[name])
        largest = float(differences.max(initial=0.0))
        magnitude = float(np.sqrt(np.square(exact).mean())) if exact.size else 0.0
        found[name] = ScoreDifference(
            largest if np.isfinite(largest) else float("inf"),
            magnitude if np.isfinite(magnitude) else 0.0,
            differences.reshape(len(differences), -1).max(1, initial=0.0),
        )
    return found


def largest_difference(expected: _Scores, got: _Scores) -> float:
    """The largest absolute difference of any score; infinity if any is NaN."""
    return max((d.largest for d in score_differences(expected, got).values()), default=0.0)


def score_gaps(some: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Absolute differences: 0 for two NaN or equal infinities, infinity for one of them."""
    same = (some == others) | (np.isnan(some) & np.isnan(others))
    with np.errstate(invalid="ignore"):
        difference = np.abs(some.astype(np.float64) - others)
    difference[np.isnan(difference)] = np.inf
    difference[same] = 0
    return difference
