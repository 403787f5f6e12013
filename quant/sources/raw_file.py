"""Rows of numbers in a file without a header."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quant.sources.weight_source import SourceError, check_key, check_range


class RawFileSource:
    """One weight of little-endian numbers, row after row."""

    def __init__(self, path: Path, key: str, dtype: str, width: int | None = None) -> None:
        """Open rows of `width` numbers (None: `[N]`); SourceError for a missing or partial row."""
        self.description = str(path)
        self._path, self._key = path, key
        self._dtype = np.dtype(dtype).newbyteorder("<")
        row = self._dtype.itemsize * (1 if width is None else width)
        if not path.is_file():
            raise SourceError(f"{path}: no such file")
        size = path.stat().st_size
        if size % row:
            raise SourceError(f"{path}: expected rows of {row} bytes, got {size} bytes")
        self._shape = (size // row,) if width is None else (size // row, width)

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        return (self._key,)

    def shape(self, key: str) -> tuple[int, ...]:
        """As `WeightSource.shape`."""
        check_key(self, (self._key,), key)
        return self._shape

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)`, in this machine's byte order."""
        check_range(self, key, start, stop)
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
