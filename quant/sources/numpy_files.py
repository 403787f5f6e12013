"""Trained weights in NumPy files."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from torch import Tensor

from quant.sources.array_rows import Array, array_rows, holds_numbers
from quant.sources.weight_source import SourceError, check_key, check_range


class NumpySource:
    """Weights in `.npy` files, each under its file's name without the suffix.

    Files are mapped only during reads, because there may be more of them than a process may have
    open.
    """

    def __init__(self, path: Path) -> None:
        """Read the headers; SourceError if no file exists, or one is unreadable or not numeric."""
        self.description = str(path)
        files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
        if not files:
            raise SourceError(f"{path}: holds no .npy files")
        self._files = {file.stem: file for file in files}
        self._shapes: dict[str, tuple[int, ...]] = {
            key: _mapped(file).shape for key, file in self._files.items()
        }

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        return self._files.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """As `WeightSource.shape`."""
        check_key(self, self._shapes, key)
        return self._shapes[key]

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` in their own dtype, in this machine's byte order."""
        check_range(self, key, start, stop)
        array = _mapped(self._files[key])
        if array.shape != self._shapes[key]:
            raise SourceError(
                f"{self._files[key]}: changed since it was opened: expected "
                f"{list(self._shapes[key])}, got {list(array.shape)}"
            )
        return array_rows(array, start, stop)


def _mapped(file: Path) -> Array:
    # As np.load(mmap_mode="r", allow_pickle=False), without its guessing at other formats.
    try:
        array: Array = np.lib.format.open_memmap(file, mode="r")
    # A damaged header fails in many ways: ValueError, SyntaxError, TokenError, OverflowError...
    except Exception as error:
        raise SourceError(f"{file}: not a readable .npy file: {error}") from error
    if not holds_numbers(array.dtype):
        raise SourceError(
            f"{file}: expected numbers, got NumPy's dtype {str(array.dtype)[:100]!r} "
            "(NumPy has no bfloat16: save it as float32, or in a safetensors file)"
        )
    return array
