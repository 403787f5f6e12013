"""What a batch costs: seconds by its samples, measured at warm-up and kept true by live timings.

    predicted(n)   straight lines between the measured sizes; beyond the largest, in proportion;
                   times the stretch
    observe(n, s)  the sizes around n move by a tenth of what the prediction was off, each by its
                   part in the prediction; a size never costs more than a larger one; a size that
                   has not run for a second, and is thought dearer than at warm-up by more than
                   this batch was, moves towards that

What sizes cost is learnt from the thread's own processor time. How much longer it takes by the
clock is the stretch, one figure for all sizes: other threads and processes of the core make it,
whatever the size, and what merging pays must not depend on when each size was last seen.

A tenth is slow enough that one hiccup does not count, and fast enough that 20 batches after a
change nine tenths of it are learnt. The first live timings of a size count more: warm-up runs one
batch after another, and a server does other things in between.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

_LEARNING_RATE = 0.1
_STALE_RATE = 0.5
# A batch that took longer by far met something else (a stolen core); it counts as this much.
_LARGEST_RATIO = 4.0
# Without a live timing for so long, a size's figure may be wrong: see `is_stale`.
_STALE_SECONDS = 1.0


class CostTable:
    """Seconds of one batch, by its samples. Not safe between threads: its owner holds a lock."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        """Begins with measured sizes.

        Args:
            measured: seconds by samples; at least one size, all positive.
        """
        self._sizes = sorted(measured)
        # Whatever else the machine did has only added to a timing: no size costs more than a
        # larger one did.
        falling = accumulate((measured[size] for size in reversed(self._sizes)), min)
        self._seconds = list(falling)[::-1]
        self._at_warm_up = list(self._seconds)
        # What is believed: more samples do not cost less. What is learnt is kept by itself, so that
        # a hiccup of one size does not stay with the larger ones.
        self._rising = list(self._seconds)
        self._stretch = 1.0
        self._timings = [0] * len(self._sizes)
        self._observed = [float("-inf")] * len(self._sizes)

    def predicted(self, samples: int) -> float:
        """Seconds that a batch takes.

        Args:
            samples: of the batch, at least 1.
        """
        return self._worked(samples) * self._stretch

    def _worked(self, samples: int) -> float:
        return _between(self._sizes, self._rising, samples)

    def observe(
        self, samples: int, seconds: float, now: float, *, cpu_seconds: float | None = None
    ) -> None:
        """Learns from a batch that has run.

        Args:
            samples: of the batch.
            seconds: what it took.
            now: any clock's seconds.
            cpu_seconds: what its thread worked; None: all the time.
        """
        burnt = seconds if cpu_seconds is None else min(cpu_seconds, seconds)
        self._stretch += _LEARNING_RATE * (
            min(seconds / max(burnt, 1e-9), _LARGEST_RATIO) - self._stretch
        )
        off = min(burnt / self._worked(samples), _LARGEST_RATIO) - 1.0
        for at, weight in self._neighbours(samples):
            rate = max(_LEARNING_RATE, 1.0 / (2 + self._timings[at]))
            if off < 0.0 and now - self._observed[at] > _STALE_SECONDS:
                # Nothing makes a batch quicker than it is.
                rate = max(rate, _STALE_RATE)
            self._seconds[at] *= 1.0 + rate * weight * off
            # A size that hardly counted has not been measured.
            if weight >= 0.5:
                self._observed[at] = now
                self._timings[at] += 1
            for smaller in range(at):
                self._seconds[smaller] = min(self._seconds[smaller], self._seconds[at])
        self._forgive(samples, burnt, now)
        self._rising = list(accumulate(self._seconds, max))

    def _forgive(self, samples: int, burnt: float, now: float) -> None:
        # A size that a hiccup made look dear is avoided, and would never be measured again.
        ratio = burnt / _between(self._sizes, self._at_warm_up, samples)
        worse = min(max(ratio, 1.0), _LARGEST_RATIO)
        for at, (seconds, before) in enumerate(zip(self._seconds, self._at_warm_up, strict=True)):
            if seconds > worse * before and now - self._observed[at] > _STALE_SECONDS:
                self._seconds[at] += _LEARNING_RATE * (worse * before - seconds)

    def is_stale(self, samples: int, now: float) -> bool:
        """Whether no batch near this size has run for a second.

        A figure that is too high would refuse every request, and never be corrected: where it is
        stale, one request is let through to measure it.
        """
        most, _ = max(self._neighbours(samples), key=lambda neighbour: neighbour[1])
        return now - self._observed[most] > _STALE_SECONDS

    def as_dict(self) -> dict[int, float]:
        """Seconds by samples, at the measured sizes."""
        return {size: self.predicted(size) for size in self._sizes}

    def _neighbours(self, samples: int) -> list[tuple[int, float]]:
        # The sizes around a batch's, and their parts in its prediction.
        sizes = self._sizes
        right = bisect_left(sizes, samples)
        if right == len(sizes):
            return [(right - 1, 1.0)]
        if right == 0 or sizes[right] == samples:
            return [(right, 1.0)]
        share = (samples - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        part = share * self._seconds[right] / self.predicted(samples)
        return [(right - 1, 1.0 - part), (right, part)]


def _between(sizes: Sequence[int], seconds: Sequence[float], samples: int) -> float:
    """On the straight line between the sizes around; beyond the largest, in proportion."""
    right = bisect_left(sizes, samples)
    if right == len(sizes):
        return seconds[-1] * samples / sizes[-1]
    if right == 0 or sizes[right] == samples:
        return seconds[right]
    share = (samples - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
    return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])
