"""Estimates a batch's run time from its samples: measured at warm-up, updated by live timings.

    predicted(n)   linear between the measured sizes, proportional beyond the largest; multiplied
                   by the stretch
    observe(n, s)  moves the sizes around n by a tenth of the prediction's relative error, each by
                   its share of the prediction; a size never costs more than a larger one

A size whose estimate is too high may never run again. `observe` lowers such an estimate if the size
has not run for a second. The estimate must exceed its warm-up time by a larger factor than that of
the size that ran. Both may be below their warm-up times: the samples of a request may share what
those of the warm-up had of their own.

The costs of sizes are learnt from the thread's processor time. The stretch is elapsed time divided
by it, one figure for all sizes: the gain from batching must not depend on when each size last ran.
The first live timings of a size count more, because a server does other work between batches.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

_LEARNING_RATE = 0.1
_STALE_RATE = 0.5
# A far slower batch was disturbed (a stolen core); its ratio is capped at this value.
_LARGEST_RATIO = 4.0
# Seconds without a live timing after which an estimate may be wrong: see `is_stale`.
_STALE_SECONDS = 1.0


class CostTable:
    def __init__(self, measured: Mapping[int, float]) -> None:
        self._sizes = sorted(measured)
        # Other work on the machine only adds to a timing: no size costs more than a larger one
        # did.
        falling = accumulate((measured[size] for size in reversed(self._sizes)), min)
        self._seconds = list(falling)[::-1]
        self._at_warm_up = list(self._seconds)
        # The estimates: no size costs less than a smaller one. They are kept apart from what is
        # learnt, so that an outlier of one size does not stay with the larger sizes.
        self._rising = list(self._seconds)
        self._stretch = 1.0
        self._timings = [0] * len(self._sizes)
        self._observed = [float("-inf")] * len(self._sizes)

    def predicted(self, samples: int) -> float:
        return self._worked(samples) * self._stretch

    def _worked(self, samples: int) -> float:
        return _between(self._sizes, self._rising, samples)

    def observe(
        self, samples: int, seconds: float, now: float, *, cpu_seconds: float | None = None
    ) -> None:
        burnt = seconds if cpu_seconds is None else min(cpu_seconds, seconds)
        self._stretch += _LEARNING_RATE * (
            min(seconds / max(burnt, 1e-9), _LARGEST_RATIO) - self._stretch
        )
        off = min(burnt / self._worked(samples), _LARGEST_RATIO) - 1.0
        for at, weight in self._neighbours(samples):
            rate = max(_LEARNING_RATE, 1.0 / (2 + self._timings[at]))
            if off < 0.0 and now - self._observed[at] > _STALE_SECONDS:
                # Disturbances only slow a batch down, so a lower time is believed sooner.
                rate = max(rate, _STALE_RATE)
            self._seconds[at] *= 1.0 + rate * weight * off
            # A size with a small weight has not been measured.
            if weight >= 0.5:
                self._observed[at] = now
                self._timings[at] += 1
            for smaller in range(at):
                self._seconds[smaller] = min(self._seconds[smaller], self._seconds[at])
        self._forgive(samples, now)
        self._rising = list(accumulate(self._seconds, max))

    def _forgive(self, samples: int, now: float) -> None:
        # A size that looks expensive is avoided, and would not be measured again.
        learnt, warm_up = (
            _between(self._sizes, of, samples) for of in (self._seconds, self._at_warm_up)
        )
        ratio = min(learnt / warm_up, _LARGEST_RATIO)
        for at, (seconds, before) in enumerate(zip(self._seconds, self._at_warm_up, strict=True)):
            if seconds > ratio * before and now - self._observed[at] > _STALE_SECONDS:
                self._seconds[at] += _LEARNING_RATE * (ratio * before - seconds)

    def is_stale(self, samples: int, now: float) -> bool:
        # An estimate that is too high would refuse every request and never be corrected: if no
        # batch near this size has run for a second, one request is admitted to measure it.
        most, _ = max(self._neighbours(samples), key=lambda neighbour: neighbour[1])
        return now - self._observed[most] > _STALE_SECONDS

    def _neighbours(self, samples: int) -> list[tuple[int, float]]:
        # The sizes around a batch's size, and their shares of its prediction.
        sizes = self._sizes
        right = bisect_left(sizes, samples)
        if right == len(sizes):
            return [(right - 1, 1.0)]
        if right == 0 or sizes[right] == samples:
            return [(right, 1.0)]
        share = (samples - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        part = share * self._seconds[right] / (self._worked(samples) * self._stretch)
        return [(right - 1, 1.0 - part), (right, part)]


def _between(sizes: Sequence[int], seconds: Sequence[float], samples: int) -> float:
    right = bisect_left(sizes, samples)
    if right == len(sizes):
        return seconds[-1] * samples / sizes[-1]
    if right == 0 or sizes[right] == samples:
        return seconds[right]
    share = (samples - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])
