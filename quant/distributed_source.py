"""Trained weights in a directory that torch.distributed.checkpoint wrote."""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from quant.distributed_metadata import StoredChunk, read_metadata
from quant.saved_tensor import SavedTensor, locate
from quant.source import SourceError, check_key, check_range


class DistributedCheckpointSource:
    """Weights that a distributed training saved, whole or in chunks of rows and columns.

    Only data is read: nothing that the directory holds is run. A file is mapped only while rows are
    copied out of it: there may be more of them than a process may have open.
    """

    def __init__(self, path: Path) -> None:
        """Reads the metadata.

        Args:
            path: the directory, with its `.metadata`.

        Raises:
            SourceError: it is no such checkpoint, it is damaged, or it asks for code to be run.
        """
        self.description = str(path)
        self._tensors = read_metadata(path)
        self._located: dict[StoredChunk, SavedTensor] = {}

    def keys(self) -> Iterable[str]:
        """Names of all tensors; what else was saved is left out."""
        return self._tensors.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one weight.

        Raises:
            SourceError: there is no such weight.
        """
        check_key(self, self._tensors, key)
        return self._tensors[key].shape

    def read(self, key: str, start: int, stop: int) -> Tensor:
        """Rows `[start, stop)` in their own dtype, put together from the chunks that hold them.

        Raises:
            SourceError: there is no such weight, it has no such rows, or a chunk of it is damaged.
        """
        check_range(self, key, start, stop)
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
                # It is all that is asked for: the usual case, and one copy less.
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
