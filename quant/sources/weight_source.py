"""Trained weights, read a range of rows at a time, in any kind of storage."""

import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import RowFormat
from quant.sources.array_rows import Array, array_rows

_MOST_BYTES = 256 * 2**20  # a million weights, each of many pieces


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


def check_key(source: WeightSource, held: Container[str], key: str) -> None:
    """Refuse an unknown weight with SourceError."""
    if key not in held:
        raise SourceError(f"{source.description}: holds no weight {key!r}")


def check_range(source: WeightSource, key: str, start: int, stop: int) -> None:
    """Refuse, with SourceError, an unknown weight, or rows `[start, stop)` that it lacks."""
    shape = source.shape(key)
    if not shape or not 0 <= start <= stop <= shape[0]:
        raise SourceError(
            f"{source.description}: {key!r} is {list(shape)}: it has no rows {start} to {stop}"
        )


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


class TensorSource:
    """Weights in memory or mapped memory: a state dict, arrays."""

    def __init__(
        self, tensors: Mapping[str, Tensor | Array], description: str = "the state dict"
    ) -> None:
        self.description = description
        # Declared by tensors of packed rows only.
        self.row_formats: dict[str, RowFormat] = {}
        self._tensors: dict[str, Tensor | Array] = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor) and (packed := packed_rows(tensor)) is not None:
                self._tensors[name], self.row_formats[name] = packed
            else:
                self._tensors[name] = tensor.detach() if isinstance(tensor, Tensor) else tensor

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        return self._tensors.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """As `WeightSource.shape`."""
        check_key(self, self._tensors, key)
        return tuple(self._tensors[key].shape)

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` in their own dtype."""
        check_range(self, key, start, stop)
        tensor = self._tensors[key]
        if isinstance(tensor, Tensor):
            return tensor[start:stop].cpu()
        return array_rows(tensor, start, stop)


class SafetensorsSource:
    """Weights in one safetensors file, read from its mapping."""

    def __init__(self, path: Path) -> None:
        """Open the file; SourceError if it is not a safetensors file."""
        self.description = str(path)
        self._file: Any
        try:
            # safetensors ships no types. Its handle is released with the source.
            self._file = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{path}: not a readable safetensors file: {error}") from error
        self._keys: dict[str, None] = dict.fromkeys(self._file.keys())

    def keys(self) -> Iterable[str]:
        """Names of everything that can be read."""
        return self._keys.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """As `WeightSource.shape`."""
        check_key(self, self._keys, key)
        return tuple(self._file.get_slice(key).get_shape())

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` in their own dtype: a view of the mapping."""
        check_range(self, key, start, stop)
        rows: Tensor = self._file.get_slice(key)[start:stop]
        return rows
