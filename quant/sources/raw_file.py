"""Rows of numbers in a file without a header."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quant.sources.weight_source import ShapedSource, SourceError


class RawFileSource(ShapedSource):
    """One weight of little-endian numbers, row after row."""

    def __init__(self, path: Path, key: str, dtype: str, width: int | None = None) -> None:
        """Open rows of `width` numbers (None: `[N]`); SourceError for a missing or partial row."""
        self._path = path
        self._dtype = np.dtype(dtype).newbyteorder("<")
        row = self._dtype.itemsize * (1 if width is None else width)
        if not path.is_file():
            raise SourceError(f"{path}: no such file")
        size = path.stat().st_size
        if size % row:
            raise SourceError(f"{path}: expected rows of {row} bytes, got {size} bytes")
        self._shape = (size // row,) if width is None else (size // row, width)
        super().__init__(str(path), {key: self._shape})

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        width = self._shape[1] if len(self._shape) > 1 else 1
        count, offset = (stop - start) * width, start * width * self._dtype.itemsize
        try:
            numbers = np.fromfile(self._path, self._dtype, count, offset=offset)
        except OSError as error:
            raise SourceError(f"{self._path}: cannot be read: {error.strerror}") from error
        if len(numbers) != count:
            raise SourceError(f"{self._path}: changed since it was opened: it has become shorter")
        native = numbers.astype(self._dtype.newbyteorder("="), copy=False)
        return torch.from_numpy(native.reshape(stop - start, *self._shape[1:]))
