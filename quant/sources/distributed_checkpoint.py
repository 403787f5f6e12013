"""Trained weights in a directory written by torch.distributed.checkpoint."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.wording import counted
from quant.sources.inert_pickle import TORCH_VALUES, Names, Record, is_extent, read_pickle
from quant.sources.saved_tensor import SavedTensor, locate
from quant.sources.weight_source import ShapedSource, SourceError, file_beside, read_bounded

METADATA_NAME = ".metadata"


@dataclass(frozen=True, slots=True)
class _StoredChunk:
    """A rectangle of a tensor (first element, sizes), saved at byte `start` of a file."""

    file: Path
    start: int
    length: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def overlaps(self, other: "_StoredChunk") -> bool:
        """True if both hold the same element."""
        return all(
            a < b + other_size and b < a + size
            for a, size, b, other_size in zip(
                self.offsets, self.sizes, other.offsets, other.sizes, strict=True
            )
        )


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    """A tensor and its chunks, which hold each element once."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[_StoredChunk, ...]


class _Metadata(Record): ...


class _Tensor(Record): ...


class _Properties(Record): ...


class _Chunk(Record): ...


class _Index(Record): ...


class _Storage(Record): ...


_MODULE = "torch.distributed.checkpoint.metadata"
# Home of a tensor's properties in torch before 2.4.
_FORMER_MODULE = "torch.distributed._shard.sharded_tensor.metadata"
_NAMES: Names = {
    **TORCH_VALUES,
    (_MODULE, "Metadata"): _Metadata,
    (_MODULE, "TensorStorageMetadata"): _Tensor,
    (_MODULE, "TensorProperties"): _Properties,
    (_FORMER_MODULE, "TensorProperties"): _Properties,
    (_MODULE, "ChunkStorageMetadata"): _Chunk,
    (_MODULE, "MetadataIndex"): _Index,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _Storage,
    # The following entries are not needed here.
    (_MODULE, "BytesStorageMetadata"): Record,
    (_MODULE, "StorageMeta"): Record,
    (_MODULE, "_MEM_FORMAT_ENCODING"): Record,
    (_FORMER_MODULE, "MEM_FORMAT_ENCODING"): Record,
    ("torch.serialization", "_get_layout"): Record,
    ("collections", "OrderedDict"): Record,
    ("pathlib", "PosixPath"): Record,
    ("pathlib", "WindowsPath"): Record,
    ("pathlib._local", "PosixPath"): Record,
    ("pathlib._local", "WindowsPath"): Record,
}


class DistributedCheckpointSource(ShapedSource):
    """Weights saved by a distributed training, whole or in chunks of rows and columns.

    Nothing in the directory is executed. Files are mapped only during copies, because there may be
    more of them than a process may have open.
    """

    def __init__(self, path: Path) -> None:
        """Read `.metadata`; SourceError if it is damaged, foreign or would run code."""
        self._tensors = _read_metadata(path)
        self._located: dict[_StoredChunk, SavedTensor] = {}
        super().__init__(str(path), {key: one.shape for key, one in self._tensors.items()})

    def starts(self, key: str) -> list[int]:
        """The first row of each part that a process saved, ascending."""
        return sorted({chunk.offsets[0] for chunk in self._tensors[key].chunks})

    def _rows(self, key: str, start: int, stop: int) -> Tensor:
        tensor = self._tensors[key]
        rows = torch.empty((stop - start, *tensor.shape[1:]), dtype=tensor.dtype)
        for chunk in tensor.chunks:
            top = chunk.offsets[0]
            first, last = max(start, top), min(stop, top + chunk.sizes[0])
            if first < last:
                columns = (
                    slice(offset, offset + size)
                    for offset, size in zip(chunk.offsets[1:], chunk.sizes[1:], strict=True)
                )
                saved = self._saved(key, chunk, tensor.dtype)
                piece = saved.read(first - top, last - top)
                # One piece covers the request: the usual case, and one copy less.
                if piece.shape == rows.shape:
                    return piece
                rows[slice(first - start, last - start), *columns] = piece
        return rows

    def _saved(self, key: str, chunk: _StoredChunk, dtype: torch.dtype) -> SavedTensor:
        if chunk not in self._located:
            saved = locate(chunk.file, chunk.start, chunk.length, repr(key))
            if saved.shape != chunk.sizes or saved.dtype != dtype:
                raise SourceError(
                    f"{chunk.file}: {key!r} at byte {chunk.start}: the metadata says "
                    f"{list(chunk.sizes)} {dtype}, the file holds {list(saved.shape)} {saved.dtype}"
                )
            self._located[chunk] = saved
        return self._located[chunk]


def _read_metadata(directory: Path) -> dict[str, _StoredTensor]:
    """Read the tensors in a checkpoint's `.metadata`, by name, without running its code.

    Raises SourceError if there is no `.metadata`, it names something that a checkpoint of tensors
    does not need, or it is inconsistent with itself or the files' sizes.
    """
    path = directory / METADATA_NAME
    try:
        data = read_bounded(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error}") from error
    metadata = read_pickle(data, _NAMES, str(path))
    tensors = _field(metadata, _Metadata, "state_dict_metadata", str(path))
    storage = _field(metadata, _Metadata, "storage_data", str(path))
    if not isinstance(tensors, dict) or not isinstance(storage, dict):
        raise SourceError(f"{path}: expected mappings of tensors and of where they are")
    items: dict[tuple[str, tuple[int, ...]], object] = {}
    for index, item in storage.items():
        # A tensor's entries have an offset, other entries do not.
        if isinstance(index, _Index) and isinstance(index.state, dict) and "offset" in index.state:
            key = index.state.get("fqn")
            if isinstance(key, str):
                items[key, _extent(index.state["offset"], f"{path}: {key!r}")] = item
    found = {}
    for key, tensor in tensors.items():
        if isinstance(key, str) and isinstance(tensor, _Tensor):
            found[key] = _stored_tensor(path, key, tensor, items)
    return found


def _stored_tensor(
    path: Path, key: str, tensor: _Tensor, items: dict[tuple[str, tuple[int, ...]], object]
) -> _StoredTensor:
    where = f"{path}: {key!r}"
    properties = _field(tensor, _Tensor, "properties", where)
    # They are pickled as a tuple that begins with the dtype.
    state = properties.state if isinstance(properties, _Properties) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(dtype, torch.dtype):
        raise SourceError(f"{where}: expected a dtype among its properties, found none")
    shape = _extent(_field(tensor, _Tensor, "size", where), where)
    # Beyond this, torch's byte counts overflow, even for empty tensors.
    if math.prod(max(1, size) for size in shape) * dtype.itemsize >= 2**63:
        raise SourceError(f"{where}: is {list(shape)} {dtype}, which no file can hold")
    listed = _field(tensor, _Tensor, "chunks", where)
    if not isinstance(listed, list):
        raise SourceError(f"{where}: expected a list of chunks, got a {type(listed).__name__}")
    chunks = []
    for chunk in listed:
        offsets = _extent(_field(chunk, _Chunk, "offsets", where), where)
        sizes = _extent(_field(chunk, _Chunk, "sizes", where), where)
        if not len(offsets) == len(sizes) == len(shape) or any(
            offset + size > end for offset, size, end in zip(offsets, sizes, shape, strict=True)
        ):
            raise SourceError(
                f"{where}: is {list(shape)}, but a chunk of {list(sizes)} begins at {list(offsets)}"
            )
        # A rank beyond the last row has an empty chunk, possibly at another chunk's offset.
        if 0 in sizes:
            continue
        if (key, offsets) not in items:
            raise SourceError(f"{where}: no file is named for the chunk at {list(offsets)}")
        file, start, length = _place(path, where, items[key, offsets])
        needed = math.prod(sizes) * dtype.itemsize
        if needed > length:
            raise SourceError(
                f"{where}: the chunk at {list(offsets)} needs "
                f"{counted(needed, 'byte')}, but its item in "
                f"{file.name} has {length}"
            )
        chunks.append(_StoredChunk(file, start, length, offsets, sizes))
    _check_tiling(where, shape, chunks)
    return _StoredTensor(dtype, shape, tuple(chunks))


def _place(path: Path, where: str, item: object) -> tuple[Path, int, int]:
    name = _field(item, _Storage, "relative_path", where)
    if not isinstance(name, str):
        raise SourceError(f"{where}: expected a file's name, got a {type(name).__name__}")
    if isinstance(item, Record) and item.state.get("transform_descriptors"):
        raise SourceError(f"{where}: was compressed or encrypted when it was written to {name!r}")
    file = file_beside(path, name, where)
    extent = (_field(item, _Storage, "offset", where), _field(item, _Storage, "length", where))
    start, length = _extent(extent, where)
    file_bytes = file.stat().st_size
    if start + length > file_bytes:
        raise SourceError(
            f"{where}: {file} is truncated: expected an item at bytes {start} to {start + length}, "
            f"but the file has {file_bytes}"
        )
    return file, start, length


def _check_tiling(where: str, shape: tuple[int, ...], chunks: list[_StoredChunk]) -> None:
    held = sum(math.prod(chunk.sizes) for chunk in chunks)
    if held != math.prod(shape):
        raise SourceError(
            f"{where}: is {list(shape)}: expected chunks of "
            f"{counted(math.prod(shape), 'element')} in all, "
            f"got {held}"
        )
    ordered = sorted(chunks, key=lambda chunk: chunk.offsets)
    for position, chunk in enumerate(ordered):
        for other in ordered[position + 1 :]:
            # Later ones begin beyond this one's last row.
            if other.offsets[0] >= chunk.offsets[0] + chunk.sizes[0]:
                break
            if chunk.overlaps(other):
                raise SourceError(
                    f"{where}: the chunks at {list(chunk.offsets)} and "
                    f"{list(other.offsets)} overlap"
                )


def _field(record: object, kind: type[Record], name: str, where: str) -> object:
    state = record.state if isinstance(record, kind) else None
    if not isinstance(state, dict) or name not in state:
        raise SourceError(f"{where}: expected {kind.__name__.strip('_').lower()} with {name!r}")
    return state[name]


def _extent(values: object, where: str) -> tuple[int, ...]:
    if not is_extent(values):
        raise SourceError(f"{where}: expected sizes and offsets: whole numbers, not negative")
    return values
