"""Rows of a NumPy array, as a tensor that owns them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[Any]]
# Dtypes of both NumPy and torch, by kind and bytes of an element.
_NUMBERS = {"b1", "c8", "c16", "f2", "f4", "f8", *(k + w for k in "iu" for w in "1248")}


def holds_numbers(dtype: np.dtype[Any]) -> bool:
    """True if torch has this dtype, in either byte order."""
    return f"{dtype.kind}{dtype.itemsize}" in _NUMBERS and dtype.names is None


def array_rows(array: Array, start: int, stop: int) -> Tensor:
    """Copy rows `[start, stop)` of an array `[rows, ...]` into a contiguous tensor.

    The array, of a dtype that `holds_numbers`, may be mapped, read-only, and of any byte order and
    layout.
    """
    rows = array[start:stop]
    return torch.from_numpy(np.array(rows, dtype=rows.dtype.newbyteorder("="), order="C"))
