"""The replacement of a table's rows that no shard host can look up."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

_LARGEST = float(np.finfo(np.float32).max)
_SHOWN = 80  # characters, in an error


def _default_row(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value == "zeros"):
        return value
    if not isinstance(value, list | tuple) or not all(map(_is_fp32, value)):
        raise ValueError(f'expected "zeros" or finite numbers of fp32, got {str(value)[:_SHOWN]!r}')
    return tuple(map(float, value))


def _is_fp32(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # No comparison with NaN is true.
    return is_number and -_LARGEST <= value <= _LARGEST


# "zeros", or a number for each column; None: there is none.
DefaultRow = Annotated[Literal["zeros"] | tuple[float, ...] | None, BeforeValidator(_default_row)]
