"""Trained weights in a directory written by torch.distributed.checkpoint."""

from pathlib import Path

import torch
from torch import Tensor

from quant.sources.distributed_metadata import StoredChunk, read_metadata
from quant.sources.saved_tensor import SavedTensor, locate
from quant.sources.weight_source import ShapedSource, SourceError


class DistributedCheckpointSource(ShapedSource):
    """Weights saved by a distributed training, whole or in chunks of rows and columns.

    Nothing in the directory is executed. Files are mapped only during copies, because there may be
    more of them than a process may have open.
    """

    def __init__(self, path: Path) -> None:
        """Read `.metadata`; SourceError if it is damaged, foreign or would run code."""
        self._tensors = read_metadata(path)
        self._located: dict[StoredChunk, SavedTensor] = {}
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

    def _saved(self, key: str, chunk: StoredChunk, dtype: torch.dtype) -> SavedTensor:
        if chunk not in self._located:
            saved = locate(chunk.file, chunk.start, chunk.length, repr(key))
            if saved.shape != chunk.sizes or saved.dtype != dtype:
                raise SourceError(
                    f"{chunk.file}: {key!r} at byte {chunk.start}: the metadata says "
                    f"{list(chunk.sizes)} {dtype}, the file holds {list(saved.shape)} {saved.dtype}"
                )
            self._located[chunk] = saved
        return self._located[chunk]
