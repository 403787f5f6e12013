"""Histograms of the metrics page, with statistics of their values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Bucket:
    """Values above `low` and up to `high`; an infinite end counts as the other end."""

    low: float
    high: float
    count: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values by bucket, ascending, assumed to be uniform within a bucket."""

    buckets: tuple[Bucket, ...] = ()

    @property
    def count(self) -> float:
        """Number of values."""
        return sum(bucket.count for bucket in self.buckets)

    def quantile(self, share: float) -> float:
        """The value that this share of the values does not exceed; 0 without values."""
        rank = share * self.count
        for bucket in self.buckets:
            if bucket.count and rank <= bucket.count:
                return bucket.low + (bucket.high - bucket.low) * rank / bucket.count
            rank -= bucket.count
        return max((bucket.high for bucket in self.buckets if bucket.count), default=0.0)

    def above(self, value: float) -> float:
        """Number of values above this one."""
        total = 0.0
        for bucket in self.buckets:
            if bucket.low >= value:
                total += bucket.count
            elif bucket.high > value:
                total += bucket.count * (bucket.high - value) / (bucket.high - bucket.low)
        return total

    def mean_and_deviation(self) -> tuple[float, float]:
        """Mean and standard deviation, including that within buckets; 0 without values."""
        if not (count := self.count):
            return 0.0, 0.0
        middles = [(b.low + b.high) / 2 for b in self.buckets]
        counted = list(zip(self.buckets, middles, strict=True))
        mean = sum(b.count * middle for b, middle in counted) / count
        variance = (
            sum(
                b.count * ((middle - mean) ** 2 + (b.high - b.low) ** 2 / 12)
                for b, middle in counted
            )
            / count
        )
        return mean, sqrt(variance)


def binned(numbers: Sequence[NDArray[Any]], bins: int) -> tuple[list[list[int]], list[float]]:
    """Counts of several arrays in bins of equal widths, and the `bins + 1` edges of these.

    Empty without numbers, which are finite.
    """
    if not any(map(len, numbers)):
        return [[] for _ in numbers], []
    joined = np.concatenate(numbers).astype(np.float64)
    # Not NumPy's edges, which do not exist for large equal numbers.
    edges = np.linspace(joined.min(), joined.max(), bins + 1)
    return [np.histogram(own, edges)[0].tolist() for own in numbers], edges.tolist()


def histogram_of(cumulative: Mapping[str, float], *, least: float = -inf) -> Histogram:
    """A histogram of counts by text of boundaries, with `+Inf`; no value is below `least`."""
    buckets = []
    low, before = least, 0.0
    for boundary, count in sorted((float(text), count) for text, count in cumulative.items()):
        begin, end = (boundary if low == -inf else low), (low if boundary == inf else boundary)
        buckets.append(Bucket(begin, end, max(0.0, count - before)))
        low, before = boundary, count
    return Histogram(tuple(buckets))
