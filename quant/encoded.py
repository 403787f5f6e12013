"""Encoded rows with what encoding did to them."""

from dataclasses import dataclass

from torch import Tensor

from kernels.errors import InputError


class UnrepresentableRowError(InputError):
    """A row that its format cannot hold; `row` is its index in the rows given."""

    def __init__(self, row: int, reason: str) -> None:
        """Keeps the row's index, so that a caller who knows the table can name it."""
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as they are stored, and each row's errors as it is read back.

    Attributes:
        stored: uint8 `[n, row_bytes]`.
        squared_errors: fp32 `[n]`, summed over each row.
        squares: fp32 `[n]`, of the numbers, summed over each row.
        max_errors: fp32 `[n]`, the largest absolute error of each row.
        minmax_squared_errors: fp32 `[n]`, as `squared_errors` had each row's minimum and maximum
            been its range; None where ranges are not searched.
    """

    stored: Tensor
    squared_errors: Tensor
    squares: Tensor
    max_errors: Tensor
    minmax_squared_errors: Tensor | None = None
