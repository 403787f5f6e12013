"""Reading of one tensor that torch.save wrote into part of a file, in place."""

import io
import math
import mmap
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels.wording import counted
from quant.sources.file_kind import LOCAL_HEADER
from quant.sources.inert_pickle import TORCH_VALUES, Names, Record, is_extent, read_pickle
from quant.sources.weight_source import SourceError

# NumPy has no bfloat16: elements are carried as integers of their size.
_CARRIERS = {1: "i1", 2: "i2", 4: "i4", 8: "i8", 16: "c16"}


class _Rebuilt(Record): ...


class _RebuiltWithDtype(Record): ...


class _RebuiltParameter(Record): ...


class _Storage(Record): ...


_NAMES: Names = {
    **TORCH_VALUES,
    ("torch._utils", "_rebuild_tensor_v2"): _Rebuilt,
    ("torch._utils", "_rebuild_tensor_v3"): _RebuiltWithDtype,
    ("torch._utils", "_rebuild_parameter"): _RebuiltParameter,
    ("collections", "OrderedDict"): Record,
    # A type of storage stands for the dtype of its elements.
    ("torch", "DoubleStorage"): torch.float64,
    ("torch", "FloatStorage"): torch.float32,
    ("torch", "HalfStorage"): torch.float16,
    ("torch", "BFloat16Storage"): torch.bfloat16,
    ("torch", "LongStorage"): torch.int64,
    ("torch", "IntStorage"): torch.int32,
    ("torch", "ShortStorage"): torch.int16,
    ("torch", "CharStorage"): torch.int8,
    ("torch", "ByteStorage"): torch.uint8,
    ("torch", "BoolStorage"): torch.bool,
    ("torch", "ComplexFloatStorage"): torch.complex64,
    ("torch", "ComplexDoubleStorage"): torch.complex128,
    ("torch.storage", "UntypedStorage"): torch.uint8,
}


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor in a file: byte offset of its first element, and strides in elements."""

    file: Path
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, start: int, stop: int) -> Tensor:
        """Copy rows `[start, stop)`, at any byte; SourceError if the file is gone or truncated."""
        try:
            whole: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = np.ndarray(
                self.shape,
                _CARRIERS[self.dtype.itemsize],
                _mapped(self.file),
                self.start,
                [stride * self.dtype.itemsize for stride in self.strides],
            )
        except (OSError, ValueError, TypeError) as error:
            raise SourceError(f"{self.file}: changed since it was opened: {error}") from error
        rows = torch.from_numpy(np.array(whole[start:stop], order="C"))
        return rows.view(self.dtype)


class _Slice(io.RawIOBase):
    """Part of a mapping with the interface of a file."""

    def __init__(self, mapping: mmap.mmap, start: int, length: int) -> None:
        super().__init__()
        self._mapping = mapping
        self._start = start
        self._length = length
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        if origin + offset < 0:
            raise ValueError(f"seek to {origin + offset}")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._length - self._position)
        taken = left if size < 0 else min(size, left)
        begin = self._start + self._position
        self._position += taken
        return self._mapping[begin : begin + taken]


def locate(file: Path, start: int, length: int, where: str) -> SavedTensor:
    """Find the tensor in an archive of torch.save, at bytes of a file, without running its code.

    Raises SourceError, naming `where`, if it is not such an archive, does not hold exactly one
    dense tensor, or the tensor reaches beyond its storage.
    """
    where = f"{file}: {where} at byte {start}"
    try:
        mapping = _mapped(file)
        with zipfile.ZipFile(_Slice(mapping, start, length)) as archive:
            return _located(file, mapping, (start, length), archive, where)
    except SourceError:
        raise
    # zipfile raises arbitrary errors for a damaged archive.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise SourceError(f"{where}: not a readable archive of torch.save: {reason}") from error


def _located(
    file: Path,
    mapping: mmap.mmap,
    extent: tuple[int, int],
    archive: zipfile.ZipFile,
    where: str,
) -> SavedTensor:
    names = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith("/data.pkl")]
    if len(names) != 1:
        raise SourceError(f"{where}: expected one data.pkl, found {len(names)}")
    folder = names[0].removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist():
        order = archive.read(_stored(archive, f"{folder}byteorder", where))
        if order != b"little":
            raise SourceError(f"{where}: expected little-endian bytes, got {order!r:.40}")
    data = archive.read(_stored(archive, names[0], where))
    tensor = read_pickle(data, _NAMES, where, persistent=_Storage)
    parts = _parts(tensor, where)
    info = _stored(archive, f"{folder}data/{parts.key}", where)
    signature, name_bytes, extra_bytes = LOCAL_HEADER.unpack_from(
        mapping, extent[0] + info.header_offset
    )
    first = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes
    if signature != b"PK\3\4" or info.header_offset < 0 or first + info.file_size > extent[1]:
        raise SourceError(
            f"{where}: its storage of {counted(info.file_size, 'byte')} is not in the archive"
        )
    if parts.storage_bytes != info.file_size:
        raise SourceError(
            f"{where}: expected a storage of "
            f"{counted(parts.storage_bytes, 'byte')}, got {info.file_size}"
        )
    reach = parts.offset + 1
    for size, stride in zip(parts.shape, parts.strides, strict=True):
        reach += (size - 1) * stride
    if math.prod(parts.shape) and reach * parts.dtype.itemsize > info.file_size:
        raise SourceError(
            f"{where}: {list(parts.shape)} {parts.dtype} with strides {list(parts.strides)} from "
            f"element {parts.offset} reaches beyond its storage of "
            f"{counted(info.file_size, 'byte')}"
        )
    begin = extent[0] + first + parts.offset * parts.dtype.itemsize
    return SavedTensor(file, begin, parts.dtype, parts.shape, parts.strides)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Fields of a tensor's pickle."""

    key: str
    storage_bytes: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def _parts(tensor: object, where: str) -> _Parts:
    if isinstance(tensor, _RebuiltParameter) and tensor.arguments:
        tensor = tensor.arguments[0]
    match tensor:
        case _Rebuilt(arguments=(_Storage(arguments=(storage,)), offset, shape, strides, *_)):
            given = None
        case _RebuiltWithDtype(
            arguments=(_Storage(arguments=(storage,)), offset, shape, strides, _, _, given, *_)
        ):
            pass
        case _:
            raise SourceError(f"{where}: expected one dense tensor")
    match storage:
        case ("storage", torch.dtype() as dtype, str(key), _, int(elements)):
            pass
        case _:
            raise SourceError(f"{where}: expected a storage with its dtype, name and size")
    storage_bytes = elements * dtype.itemsize
    dtype = given or dtype
    if (
        not isinstance(dtype, torch.dtype)
        or dtype.itemsize not in _CARRIERS
        or not is_extent(shape)
        or not is_extent(strides)
        or not is_extent((offset,))
        or len(shape) != len(strides)
    ):
        raise SourceError(f"{where}: expected a tensor's offset, sizes, strides and dtype")
    return _Parts(key, storage_bytes, offset, shape, strides, dtype)


def _stored(archive: zipfile.ZipFile, name: str, where: str) -> zipfile.ZipInfo:
    # KeyError if missing: the caller names the archive.
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise SourceError(f"{where}: expected {name!r:.200} to be stored as it is, not compressed")
    return info


def _mapped(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
