"""Schedules of the calls of an open loop."""

import math

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from serving.bench.load.bounds import check_positive


def constant_schedule(rate: float, seconds: float) -> NDArray[np.float64]:
    """Times at equal distances, float64 seconds from 0; InputError unless both are positive."""
    check_positive("rate", rate)
    check_positive("seconds", seconds)
    return np.arange(math.ceil(rate * seconds), dtype=np.float64) / rate


def poisson_schedule(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Times of independent callers, a Poisson process: float64 `[N]`, seconds, ascending.

    The number of calls is drawn from its Poisson distribution. Given that number, the times are
    independent and uniform in `[0, seconds)` (Kingman, Poisson Processes, section 2.4). Raises
    InputError if the rate (mean calls a second) or the time is not positive.
    """
    check_positive("rate", rate)
    check_positive("seconds", seconds)
    generator = np.random.default_rng(seed)
    times = generator.uniform(0.0, seconds, size=generator.poisson(rate * seconds))
    times.sort()
    return times


def checked_schedule(schedule: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lay out a schedule for compiled code; InputError unless float64 `[N]`, ascending from 0."""
    if schedule.dtype != np.float64 or schedule.ndim != 1:
        raise InputError(
            f"schedule: expected float64 [N], got {schedule.dtype} {list(schedule.shape)}"
        )
    if not np.isfinite(schedule).all() or (schedule < 0).any() or (np.diff(schedule) < 0).any():
        raise InputError("schedule: expected ascending times of 0 or more")
    return np.ascontiguousarray(schedule)
