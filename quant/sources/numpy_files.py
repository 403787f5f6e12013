"""Trained weights in NumPy files, and in files of numbers without a header."""

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quant.sources.file_kind import LOCAL_HEADER, NUMPY, ZIP, why_unreadable
from quant.sources.weight_source import (
    Array,
    ShapedSource,
    SourceError,
    array_rows,
    holds_numbers,
)

_LONGEST_HEADER = 65536  # of an array; NumPy itself refuses more than 10,000 bytes


class NumpySource(ShapedSource):
    """Weights in `.npy` files, each under its file's name without the suffix.

    Files are mapped only during reads, because there may be more of them than a process may have
    open.
    """

    def __init__(self, path: Path) -> None:
        """Read the headers; SourceError if no file exists, or one is unreadable or not numeric."""
        files = sorted(path.glob("*.npy")) if path.is_dir() else [path]
        if not files:
            raise SourceError(f"{path}: holds no .npy files")
        self._files = {file.stem: file for file in files}
        super().__init__(str(path), {key: _mapped(file).shape for key, file in self._files.items()})

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        array = _mapped(self._files[key])
        if array.shape != self._shapes[key]:
            raise SourceError(
                f"{self._files[key]}: changed since it was opened: expected "
                f"{list(self._shapes[key])}, got {list(array.shape)}"
            )
        return array_rows(array, start, stop)


@dataclass(frozen=True, slots=True)
class _Member:
    """An array of the file: the byte of its first element, and its header's content."""

    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: str


class NpzSource(ShapedSource):
    """Arrays of one `.npz` file of `numpy.savez`, by name, mapped only during copies.

    `savez_compressed` is refused: rows of a compressed array cannot be read without all rows before
    them.
    """

    def __init__(self, path: Path) -> None:
        """Read all headers; SourceError for another, compressed, damaged or non-numeric file."""
        self._path = path
        self._members: dict[str, _Member] = {}
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    key = info.filename.removesuffix(".npy")
                    if key in self._members:
                        raise SourceError(f"{path}: holds two arrays {key[:200]!r}")
                    self._members[key] = _member(path, file, info)
        except SourceError:
            raise
        # zipfile raises arbitrary errors for a damaged archive.
        except Exception as error:
            reason = why_unreadable(path, ZIP, f"{type(error).__name__}: {error}"[:200])
            raise SourceError(f"{path}: not a readable .npz file: {reason}") from error
        super().__init__(str(path), {key: one.shape for key, one in self._members.items()})

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        member = self._members[key]
        if math.prod(member.shape) == 0:
            return array_rows(np.empty(member.shape, member.dtype), start, stop)
        try:
            array: Array = np.memmap(
                self._path,
                member.dtype,
                "r",
                offset=member.start,
                shape=member.shape,
                order="F" if member.order == "F" else "C",
            )
        except (OSError, ValueError) as error:
            raise SourceError(f"{self._path}: changed since it was opened: {error}") from error
        return array_rows(array, start, stop)


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


def _member(path: Path, file: io.BufferedReader, info: zipfile.ZipInfo) -> _Member:
    where = f"{path}: {info.filename[:200]!r}"
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise SourceError(f"{where}: is compressed; save it with numpy.savez")
    file.seek(info.header_offset)
    signature, name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    first = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
    size = path.stat().st_size
    if signature != b"PK\3\4" or first + info.file_size > size:
        raise SourceError(f"{where}: its {info.file_size} bytes are not in the file of {size}")
    file.seek(first)
    header = io.BytesIO(file.read(min(_LONGEST_HEADER, info.file_size)))
    try:
        version = np.lib.format.read_magic(header)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(header)
    # A damaged header fails in many ways: ValueError, SyntaxError, TokenError, OverflowError...
    except Exception as error:
        raise SourceError(f"{where}: not a readable array: {error!s:.200}") from error
    _check_numbers(where, dtype)
    held = info.file_size - header.tell()
    if any(axis < 0 for axis in shape) or math.prod(shape) * dtype.itemsize != held:
        raise SourceError(
            f"{where}: is {list(shape)} {dtype}, expected {math.prod(shape) * dtype.itemsize} "
            f"bytes, got {held}"
        )
    return _Member(first + header.tell(), shape, dtype, "F" if fortran else "C")


def _mapped(file: Path) -> Array:
    # As np.load(mmap_mode="r", allow_pickle=False), without its guessing at other formats.
    try:
        array: Array = np.lib.format.open_memmap(file, mode="r")
    # A damaged header fails in many ways: ValueError, SyntaxError, TokenError, OverflowError...
    except Exception as error:
        reason = why_unreadable(file, NUMPY, error)
        raise SourceError(f"{file}: not a readable .npy file: {reason}") from error
    _check_numbers(str(file), array.dtype)
    return array


def _check_numbers(where: str, dtype: np.dtype[Any]) -> None:
    if not holds_numbers(dtype):
        raise SourceError(
            f"{where}: expected numbers, got NumPy's dtype {str(dtype)[:100]!r} (NumPy has no "
            "bfloat16: save it as float32, or in a safetensors file)"
        )
