"""Bounds of a load's arguments."""

import math

from kernels.errors import InputError


def check_count(name: str, value: int) -> None:
    """Raise InputError if the value is below 1."""
    if value < 1:
        raise InputError(f"{name}: expected at least 1, got {value}")


def check_positive(name: str, value: float) -> None:
    """Raise InputError unless the value is finite and above 0."""
    if not 0 < value < math.inf:
        raise InputError(f"{name}: expected a finite number above 0, got {value}")


def check_not_negative(name: str, value: float) -> None:
    """Raise InputError unless the value is finite and 0 or more."""
    if not 0 <= value < math.inf:
        raise InputError(f"{name}: expected a finite number of 0 or more, got {value}")
