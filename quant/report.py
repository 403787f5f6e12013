"""What quantization did to a table: its sizes and errors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.row_format import RowFormat, decode


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table before and after.

    Attributes:
        name: the table.
        row_format: how it is stored.
        rows: number of rows.
        dim: elements of a row.
        fp32_bytes: size of its rows as fp32.
        stored_bytes: size of its rows as stored.
        mean_squared_error: over all elements, in the weights' unit squared.
        max_abs_error: over all elements, in the weights' unit.
        mean_square: of the fp32 elements; what the error compares with.
    """

    name: str
    row_format: RowFormat
    rows: int
    dim: int
    fp32_bytes: int
    stored_bytes: int
    mean_squared_error: float
    max_abs_error: float
    mean_square: float


class ErrorMeter:
    """Accumulates a table's errors chunk by chunk."""

    def __init__(self, name: str, row_format: RowFormat, dim: int) -> None:
        """Begins with nothing seen."""
        self._name, self._row_format, self._dim = name, row_format, dim
        self._rows, self._squares, self._errors, self._largest = 0, 0.0, 0.0, 0.0

    def add(self, rows: Tensor, stored: Tensor) -> None:
        """Counts one chunk.

        Args:
            rows: fp32 `[n, dim]`.
            stored: uint8 `[n, row_bytes]`, the same rows as stored.
        """
        error = decode(self._row_format, stored, self._dim).sub_(rows)
        self._rows += len(rows)
        # Norms accumulate in fp64; the squares of a chunk in fp32 would lose digits.
        self._errors += float(torch.linalg.vector_norm(error, dtype=torch.float64)) ** 2
        self._squares += float(torch.linalg.vector_norm(rows, dtype=torch.float64)) ** 2
        low, high = torch.aminmax(error)
        self._largest = max(self._largest, -float(low), float(high))

    def report(self) -> TableReport:
        """The table's figures."""
        elements = self._rows * self._dim
        return TableReport(
            name=self._name,
            row_format=self._row_format,
            rows=self._rows,
            dim=self._dim,
            fp32_bytes=4 * elements,
            stored_bytes=self._rows * self._row_format.row_bytes(self._dim),
            mean_squared_error=self._errors / elements,
            max_abs_error=self._largest,
            mean_square=self._squares / elements,
        )
