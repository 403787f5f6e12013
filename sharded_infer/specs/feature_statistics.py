"""Use of features: ids for each sample, and the skew of accesses to rows."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from sharded_infer.specs.spec_errors import spec_errors

HISTOGRAM_BINS = 64
_STRICT = ConfigDict(extra="forbid")


@spec_errors
@dataclass(frozen=True, slots=True, config=_STRICT)
class FeatureStatistics:
    """The use of one feature.

    Attributes:
        pooling_factor: mean number of ids of a bag.
        zipf: exponent of the row frequencies' power law; None: unknown, counts as uniform.
        histogram: share of the accesses to each of equal ranges of rows, in the table's order;
            empty: unknown, counts as even.
    """

    pooling_factor: Annotated[float, Field(ge=0)] = 1.0
    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    histogram: tuple[Annotated[float, Field(ge=0)], ...] = ()


def count_statistics(bags: Iterable[Iterable[int]], rows: int) -> FeatureStatistics:
    """Count a feature's statistics from samples; ids outside its table are ignored.

    The exponent is the least-squares slope of log frequency over log rank, over ranks seen more
    than once (Clauset, Shalizi and Newman 2009, section 3, on its bias; good to about 0.1 here).
    """
    samples, total = 0, 0
    counts: Counter[int] = Counter()
    for bag in bags:
        ids = list(bag)
        samples += 1
        total += len(ids)
        counts.update(i for i in ids if 0 <= i < rows)
    bins = min(HISTOGRAM_BINS, rows)
    histogram = [0.0] * bins
    inside = counts.total()
    for row, count in counts.items():
        histogram[row * bins // rows] += count / inside
    return FeatureStatistics(
        pooling_factor=total / samples if samples else 0.0,
        zipf=_zipf_exponent(sorted(counts.values(), reverse=True)),
        histogram=tuple(histogram) if inside else (),
    )


def _zipf_exponent(frequencies: list[int]) -> float | None:
    repeated = [count for count in frequencies if count > 1]
    if len(repeated) < 3 or repeated[0] == repeated[-1]:
        return None
    x = [math.log(rank) for rank in range(1, len(repeated) + 1)]
    y = [math.log(count) for count in repeated]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - mean_x) ** 2 for a in x
    )
    return min(10.0, max(0.0, -slope))


def share_of_hottest(zipf: float, rows: float, hottest: float) -> float:
    """Share of accesses to the k `hottest` of n rows, n >= 1, under Zipf's law with exponent s.

    H(k, s) / H(n, s) with the generalised harmonic numbers taken as integrals, H(k, s) ~ 1 +
    (k^(1-s) - 1) / (1 - s) (Euler-Maclaurin, first term). s = 0 is uniform.
    """
    if hottest <= 0:
        return 0.0
    if hottest >= rows:
        return 1.0
    if zipf == 0:
        return hottest / rows
    return min(1.0, _harmonic(max(1.0, hottest), zipf) / _harmonic(rows, zipf))


def _harmonic(count: float, exponent: float) -> float:
    if abs(exponent - 1) < 1e-9:
        return 1 + math.log(count)
    return 1 + (math.pow(count, 1 - exponent) - 1) / (1 - exponent)
