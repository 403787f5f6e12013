"""Steps from the id that a client sends to its row: a trained module's arithmetic on ids."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

IdOperation = Literal["add", "multiply", "divide", "remainder", "at_least", "at_most"]
# An operation and its right operand; int64 arithmetic wraps around.
IdStep = tuple[IdOperation, Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]]
IdSteps = Annotated[tuple[IdStep, ...], Field(min_length=1, max_length=16)]

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_EMPTY = 0, -1
_FUNCTIONS: Final[dict[IdOperation, Any]] = {
    "add": np.add,
    "multiply": np.multiply,
    # Rounds down.
    "divide": np.floor_divide,
    # Never negative, for a positive operand.
    "remainder": np.remainder,
    "at_least": np.maximum,
    "at_most": np.minimum,
}


def check_steps(feature: str, steps: Sequence[IdStep]) -> None:
    """ValueError, naming the feature and the operation, for a divisor below 1."""
    for operation, number in steps:
        if operation in ("divide", "remainder") and number < 1:
            raise ValueError(
                f"id_steps: {feature}: {operation}: expected a number of at least 1, got {number}"
            )


def apply_steps(steps: Sequence[IdStep], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows, possibly outside the table, of ids `[N]` as sent."""
    for operation, number in steps:
        ids = _FUNCTIONS[operation](ids, np.int64(number))
    return ids


def domain(steps: Sequence[IdStep], rows: int) -> tuple[int, int] | None:
    """First and last of consecutive ids whose rows lie in `[0, rows)`; None if it finds none.

    The interval has no negative ids if it has others, only ids that no clamp changes, and of
    remainders that are partly outside the table the first period. No step overflows.
    """
    low, high = 0, rows - 1
    for operation, number in reversed(steps):
        low, high = _operands(operation, number, low, high)
        low, high = max(low, _LOWEST), min(high, _HIGHEST)
        if low > high:
            return None
    return (max(low, 0), high) if high >= 0 else (low, high)


def _operands(operation: IdOperation, number: int, low: int, high: int) -> tuple[int, int]:
    """Operands whose results lie in `[low, high]`."""
    match operation:
        case "add":
            return low - number, high - number
        case "multiply" if number == 0:
            return (_LOWEST, _HIGHEST) if low <= 0 <= high else _EMPTY
        case "multiply":
            if number < 0:
                low, high, number = -high, -low, -number
            return -(-low // number), high // number
        case "divide":
            return low * number, high * number + number - 1
        case "remainder":
            is_any = low <= 0 and high >= number - 1
            return (_LOWEST, _HIGHEST) if is_any else (max(low, 0), min(high, number - 1))
        case "at_least":
            return max(low, number), high
        case "at_most":
            return low, min(high, number)
