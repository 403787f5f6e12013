"""Schedules of the calls of an open loop."""

import math

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError


def constant_schedule(rate: float, seconds: float) -> NDArray[np.float64]:
    """Times at equal distances, float64 seconds from 0; InputError unless the rate is positive."""
    _check_rate(rate)
    return np.arange(math.ceil(rate * seconds), dtype=np.float64) / rate


def poisson_schedule(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Times of independent callers, a Poisson process: float64 `[N]`, seconds, ascending.

    The number of calls is drawn from its Poisson distribution. Given that number, the times are
    independent and uniform in `[0, seconds)` (Kingman, Poisson Processes, section 2.4). Raises
    InputError if the rate (mean calls a second) is not positive.
    """
    _check_rate(rate)
    generator = np.random.default_rng(seed)
    times = generator.uniform(0.0, seconds, size=generator.poisson(rate * seconds))
    times.sort()
    return times


def _check_rate(rate: float) -> None:
    if not 0 < rate < math.inf:
        raise InputError(f"rate: expected a finite number above 0, got {rate}")
