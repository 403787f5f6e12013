"""Scales of charts: values to positions from 0 to 1, and choice of ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_TICKS = 5  # approximate number on a scale
_STEPS = (1, 2, 5)
_OVERHANG = 0.3  # in steps


@dataclass(frozen=True, slots=True)
class Scale:
    """A range of values with ticks: round values from position 0 to 1."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool

    def place(self, value: float) -> float:
        """The position of a value; values beyond the scale are at its ends."""
        if self.logarithmic:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))


def log_scale(values: Iterable[float]) -> Scale:
    """A logarithmic scale between round values that contains all values; they must be positive."""
    found = list(values) or [1.0]
    low = max(r for r in _round_values(min(found)) if r <= min(found) * (1 + 1e-9))
    high = min(r for r in _round_values(max(found)) if r >= max(found) * (1 - 1e-9))
    if low == high:
        high = min(r for r in _round_values(high) if r > high)
    decades = [10.0**p for p in range(_power(low), _power(high) + 2) if _within(10.0**p, low, high)]
    if len(decades) > 2:
        ticks = decades[:: -(-len(decades) // (_TICKS + 2))]
    else:
        powers = range(_power(low), _power(high) + 1)
        ticks = [s * 10.0**p for p in powers for s in _STEPS if _within(s * 10.0**p, low, high)]
    return Scale(low, high, tuple(ticks), logarithmic=True)


def linear_scale(values: Iterable[float]) -> Scale:
    """A linear scale between round values that contains 0 and all values."""
    found = [0.0, *values]
    if not any(found):
        found.append(1.0)
    span = max(found) - min(found)
    power = _power(span / _TICKS)
    step = next(s * 10.0**power for s in (*_STEPS, 10) if span <= s * 10.0**power * _TICKS)
    first, low = _end(min(found) / step)
    last, high = _end(-max(found) / step)
    ticks = tuple(index * step for index in range(first, -last + 1))
    return Scale(low * step, -high * step, ticks, logarithmic=False)


def _end(lowest: float) -> tuple[int, float]:
    """The first tick and the start of the scale, both in steps.

    If the lowest value is slightly below 0, the scale starts there, as another step would be empty.
    """
    above = math.ceil(lowest - 1e-9)
    return (
        (above, lowest) if above == 0 and -lowest < _OVERHANG else (math.floor(lowest + 1e-9),) * 2
    )


def _power(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)


def _round_values(value: float) -> list[float]:
    power = _power(value)
    return [step * 10.0**p for p in (power - 1, power, power + 1) for step in _STEPS]


def _within(value: float, low: float, high: float) -> bool:
    return low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
