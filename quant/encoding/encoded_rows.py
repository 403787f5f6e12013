"""Encoded rows with their errors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.errors import InputError


class UnrepresentableRowError(InputError):
    """A row that its format cannot represent; `row` is its index in the given rows."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


def squares_of(rows: Tensor) -> Tensor:
    """Sum of the squares of each row `[n, dim]`, fp64 `[n]`."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms.square_()


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Stored rows uint8 `[n, row_bytes]`, and each row's error after decoding, `[n]`.

    Sums are fp64 where fp32 may overflow: in formats with fp32's range.

    Attributes:
        squared_errors: summed over each row.
        squares: of the values, summed over each row.
        max_errors: the largest absolute error of each row.
        minmax_squared_errors: as `squared_errors` with each row's minimum and maximum as its range;
            None if ranges are not searched.
    """

    stored: Tensor
    squared_errors: Tensor
    squares: Tensor
    max_errors: Tensor
    minmax_squared_errors: Tensor | None = None
