"""Scores of a shadow version, compared with the default version's."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from serving.metrics.cells import MetricCells
from serving.metrics.families.family import Family, FamilyBlock
from serving.metrics.families.model_families import OUTPUT_PLACES, SCORE_BOUNDARIES
from serving.metrics.families.request_families import CODES, LATENCY_BOUNDARIES
from serving.metrics.families.shadow_families import (
    BY_DEFAULT,
    BY_SHADOW,
    DIFFERENCE_BOUNDARIES,
    DROPS,
    SHADOW_DEFAULT_SCORES,
    SHADOW_DIFFERENCE,
    SHADOW_DROPPED,
    SHADOW_LARGEST,
    SHADOW_REQUESTS,
    SHADOW_SCORES,
    SHADOW_SECONDS,
    SHADOWING,
)

WINDOW_SECONDS = 60.0
Scores = NDArray[np.float32]
_SCORE_BOUNDARIES = np.array(SCORE_BOUNDARIES)
_DIFFERENCE_BOUNDARIES = np.array(DIFFERENCE_BOUNDARIES)


class ShadowMetrics:
    """A version's requests as a shadow, by this version's places of outputs. Thread-safe."""

    def __init__(self, cells: MetricCells, block: FamilyBlock) -> None:
        self._cells = cells
        self._shadowing = block.cell(SHADOWING)
        self._codes = {code: block.cell(SHADOW_REQUESTS, code) for code in CODES}
        self._dropped = {reason: block.cell(SHADOW_DROPPED, reason) for reason in DROPS}
        self._seconds = {by: block.cell(SHADOW_SECONDS, by) for by in (BY_DEFAULT, BY_SHADOW)}
        self._difference = block.cell(SHADOW_DIFFERENCE)
        self._largest_cell = block.cell(SHADOW_LARGEST)
        self._scores = block.cell(SHADOW_SCORES)
        self._default_scores = block.cell(SHADOW_DEFAULT_SCORES)
        # The largest differences by output, in the present window and the one before.
        self._largest = np.zeros((2, len(OUTPUT_PLACES)))
        self._window = 0

    def shadowing(self, flag: bool) -> None:
        """Sets whether the version is a shadow in this process."""
        with self._cells.lock:
            self._cells.own[self._shadowing] = float(flag)
            self._largest[:] = 0.0
            self._show_largest(0.0)

    def failed(self, code_name: str) -> None:
        """Counts a request that the version could not score."""
        self._cells.add(self._codes[code_name])

    def dropped(self, reason: str, count: int = 1) -> None:
        """Counts chosen requests that are not scored, by a reason of `shadow_families.DROPS`."""
        self._cells.add(self._dropped[reason], count)

    def scored(
        self,
        pairs: Mapping[int, tuple[Scores, Scores]],
        *,
        default_seconds: float,
        seconds: float,
        now: float,
    ) -> None:
        """Counts a request that both versions have scored.

        `pairs` has, by an output's place, fp32 scores of the default version and of this one, of
        equal shapes. Seconds are those of lookups and tower; `now` is on a monotonic clock.
        """
        counted = [
            (place, *_compared(default, scores))
            for place, (default, scores) in pairs.items()
            if place < len(OUTPUT_PLACES)
        ]
        cells = self._cells
        with cells.lock:
            cells.own[self._codes["OK"]] += 1.0
            self._time(BY_DEFAULT, default_seconds)
            self._time(BY_SHADOW, seconds)
            own = np.frombuffer(cells.own.cast("B"))
            self._begin_window(now)
            for place, default, scores, differences, total, largest in counted:
                _count(own, self._default_scores, SHADOW_DEFAULT_SCORES, place, default)
                _count(own, self._scores, SHADOW_SCORES, place, scores)
                _count(own, self._difference, SHADOW_DIFFERENCE, place, differences, total)
                self._largest[0, place] = max(self._largest[0, place], largest)
            self._show_largest(now)

    def look(self, now: float) -> None:
        """Drops expired largest values."""
        with self._cells.lock:
            self._show_largest(now)

    def _show_largest(self, now: float) -> None:
        # The caller holds the lock.
        self._begin_window(now)
        for cell, shown in enumerate(self._largest.max(axis=0).tolist(), self._largest_cell):
            self._cells.own[cell] = shown

    def _begin_window(self, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != self._window:
            follows = window == self._window + 1
            self._largest[1] = self._largest[0] if follows else 0.0
            self._largest[0] = 0.0
            self._window = window

    def _time(self, by: str, seconds: float) -> None:
        first = self._seconds[by]
        self._cells.own[first + bisect_left(LATENCY_BOUNDARIES, seconds)] += 1.0
        self._cells.own[first + SHADOW_SECONDS.buckets] += seconds


def _compared(
    default: Scores, scores: Scores
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], float, float]:
    """Buckets of both versions' scores and of their differences; differences' sum and maximum."""
    before, after = default.ravel().astype(np.float64), scores.ravel().astype(np.float64)
    with np.errstate(invalid="ignore"):
        differences = np.abs(after - before)
    equal = (before == after) | (np.isnan(before) & np.isnan(after))
    differences[equal] = 0.0
    # One of the two is NaN.
    differences[np.isnan(differences)] = np.inf
    return (
        _buckets(before, _SCORE_BOUNDARIES),
        _buckets(after, _SCORE_BOUNDARIES),
        _buckets(differences, _DIFFERENCE_BOUNDARIES),
        float(differences[np.isfinite(differences)].sum()),
        float(differences.max(initial=0.0)),
    )


def _buckets(values: NDArray[np.float64], boundaries: NDArray[np.float64]) -> NDArray[np.int64]:
    # NaN sort last, so they are counted above all boundaries.
    places = np.searchsorted(boundaries, values)
    return np.bincount(places, minlength=len(boundaries) + 1)


def _count(
    own: NDArray[np.float64],
    cell: int,
    family: Family,
    place: int,
    buckets: Sequence[int] | NDArray[np.int64],
    total: float = 0.0,
) -> None:
    first = cell + place * family.cells_per_series
    own[first : first + family.buckets] += buckets
    own[first + family.buckets] += total
