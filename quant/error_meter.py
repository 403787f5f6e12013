"""Accumulation of a table's errors chunk by chunk."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.row_format import RowFormat
from quant.encoder import EncodedRows
from quant.report import ErrorHistogram, TableReport

# From below fp16's row errors to above int2's. Edges are half powers of 2: squared errors then have
# whole powers, which their exponents give without a search.
_LOWEST, BINS = -34, 40
_EDGES = tuple(2.0 ** (exponent / 2) for exponent in range(_LOWEST, _LOWEST + BINS + 1))


@dataclass(frozen=True, slots=True)
class ChunkErrors:
    """Errors of one chunk of rows, as cheaply added sums over all elements.

    Attributes:
        minmax_squared_error: without clipping; None if ranges are not searched.
        square: of the values.
        max_error: the largest absolute error.
        histogram: int64 `[40]`, rows by relative error.
        zeroed: non-finite values.
    """

    rows: int
    squared_error: float
    minmax_squared_error: float | None
    square: float
    max_error: float
    histogram: NDArray[np.int64]
    zeroed: int = 0


def errors_of(encoded: EncodedRows, zeroed: int = 0) -> ChunkErrors:
    """Sum up a chunk of at least one row, in double precision."""
    errors, squares = encoded.squared_errors.numpy(), encoded.squares.numpy()
    # A row of zeros is stored exactly.
    relative = np.divide(errors, squares, out=np.zeros(len(errors)), where=squares > 0)
    exponents = (relative.astype(np.float32).view(np.int32) >> 23) - 127
    bins = np.clip(exponents - _LOWEST, 0, BINS - 1)
    minmax = encoded.minmax_squared_errors
    return ChunkErrors(
        rows=len(errors),
        squared_error=float(errors.sum(dtype=np.float64)),
        minmax_squared_error=None if minmax is None else float(minmax.numpy().sum(dtype="f8")),
        square=float(squares.sum(dtype=np.float64)),
        max_error=float(encoded.max_errors.numpy().max()),
        histogram=np.bincount(bins, minlength=BINS),
        zeroed=zeroed,
    )


class ErrorMeter:
    """Accumulates a table's errors, in the order of its rows."""

    def __init__(self, name: str, row_format: RowFormat, dim: int, reason: str = "") -> None:
        self._name, self._row_format, self._dim, self._reason = name, row_format, dim, reason
        self._rows, self._zeroed, self._largest = 0, 0, 0.0
        self._squares, self._errors = 0.0, 0.0
        self._minmax: float | None = None
        self._counts = np.zeros(BINS, np.int64)

    def add(self, chunk: ChunkErrors) -> None:
        """Count one chunk."""
        self._rows += chunk.rows
        self._zeroed += chunk.zeroed
        self._errors += chunk.squared_error
        self._squares += chunk.square
        self._largest = max(self._largest, chunk.max_error)
        if chunk.minmax_squared_error is not None:
            self._minmax = (self._minmax or 0.0) + chunk.minmax_squared_error
        self._counts += chunk.histogram

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
            minmax_mean_squared_error=None if self._minmax is None else self._minmax / elements,
            max_abs_error=self._largest,
            mean_square=self._squares / elements,
            zeroed=self._zeroed,
            row_errors=ErrorHistogram(_EDGES, tuple(self._counts.tolist())),
            reason=self._reason,
        )
