"""Numbers of protobuf's repeated fields as arrays."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)
# Other threads wait while these are converted: about 3 ms.
_AT_ONCE = 1 << 16


def numbers_of(values: Sequence[Any], dtype: type[Scalar] | np.dtype[Scalar]) -> NDArray[Scalar]:
    """An array `[N]` of a repeated field; the interpreter's lock is given away in between."""
    if len(values) <= _AT_ONCE:
        return np.array(values, dtype)
    array = np.empty(len(values), dtype)
    for at in range(0, len(values), _AT_ONCE):
        array[at : at + _AT_ONCE] = values[at : at + _AT_ONCE]
    return array
