"""Trained weights, read a range of rows at a time, in any kind of storage."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import RowFormat

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_BYTES = 256 * 2**20  # a million weights, each of many pieces
# Dtypes of both NumPy and torch, by kind and bytes of an element.
_NUMBERS = {"b1", "c8", "c16", "f2", "f4", "f8", *(k + w for k in "iu" for w in "1248")}


class SourceError(InputError):
    """Trained weights that cannot be read, or do not have the requested rows."""


@runtime_checkable
class WeightSource(Protocol):
    """Named 2-D weights of which any range of rows can be read."""

    description: str

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        ...

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one weight; SourceError if there is none."""
        ...

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` of the first axis as stored, in their own dtype, or SourceError."""
        ...


class ShapedSource:
    """A source that knows all shapes when it is opened."""

    def __init__(self, description: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.description, self._shapes = description, shapes

    def keys(self) -> Iterable[str]:
        """As `WeightSource.keys`."""
        return self._shapes.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """As `WeightSource.shape`."""
        if key not in self._shapes:
            raise SourceError(f"{self.description}: holds no weight {key!r}")
        return self._shapes[key]

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """As `WeightSource.read`, in this machine's byte order."""
        check_range(self, key, start, stop)
        return self._rows(key, start, stop)

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        """Rows that are there."""
        raise NotImplementedError


def check_range(source: WeightSource, key: str, start: int, stop: int) -> None:
    """Refuse, with SourceError, an unknown weight, or rows `[start, stop)` that it lacks."""
    shape = source.shape(key)
    if not shape or not 0 <= start <= stop <= shape[0]:
        raise SourceError(
            f"{source.description}: {key!r} is {list(shape)}: it has no rows {start} to {stop}"
        )


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


def read_bounded(path: Path) -> bytes:
    """An index file's content; SourceError if too large or not a file, OSError if unreadable."""
    size = path.stat().st_size
    if size > _MOST_BYTES or not path.is_file():
        raise SourceError(f"{path}: expected a file of at most {_MOST_BYTES} bytes, got {size}")
    return path.read_bytes()


def file_beside(index: Path, name: str, where: str) -> Path:
    """The existing file of a plain name beside the index; SourceError otherwise."""
    if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise SourceError(f"{where}: expected a plain file name, got {name!r:.200}")
    file = index.with_name(name)
    # Unlike Path.is_file, it is False for an impossible name.
    if not os.path.isfile(file):
        raise SourceError(f"{where}: no such file: {file}")
    return file


def packed_rows(tensor: Tensor) -> tuple[Tensor, RowFormat] | None:
    """The bytes and the format of a tensor that counts packed elements; None of any other.

    TorchRec's `UInt4Tensor` and `UInt2Tensor` (`torchrec/tensor_types.py`) are recognised by their
    parts: `elem` has the bytes, and `N` is the number of elements in a byte.
    """
    elements, rows = getattr(tensor, "N", None), getattr(tensor, "elem", None)
    row_format = {2: RowFormat.INT4, 4: RowFormat.INT2}.get(elements) if elements else None
    if row_format is None or not isinstance(rows, Tensor) or rows.dtype is not torch.uint8:
        return None
    return rows, row_format


def said_format(source: "WeightSource", key: str) -> RowFormat | None:
    """The row format that a weight declares itself."""
    return source.row_formats.get(key) if isinstance(source, TensorSource) else None


class TensorSource(ShapedSource):
    """Weights in memory or mapped memory: a state dict, arrays."""

    def __init__(
        self, tensors: Mapping[str, Tensor | Array], description: str = "the state dict"
    ) -> None:
        # Declared by tensors of packed rows only.
        self.row_formats: dict[str, RowFormat] = {}
        self._tensors: dict[str, Tensor | Array] = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and (packed := packed_rows(tensor)) is not None:
                self._tensors[name], self.row_formats[name] = packed
            else:
                self._tensors[name] = tensor.detach() if isinstance(tensor, Tensor) else tensor
        shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}
        super().__init__(description, shapes)

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        tensor = self._tensors[key]
        if isinstance(tensor, Tensor):
            return tensor[start:stop].cpu()
        return array_rows(tensor, start, stop)
