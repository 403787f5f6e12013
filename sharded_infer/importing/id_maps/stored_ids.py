"""Checked columns of ids and rows, read in chunks."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.wording import counted
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import Chunk, Ids

CHUNK = 2**18  # ids that are read at once: 2 MiB
_NUMBERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def check_column(source: WeightSource, key: str, count: int | None = None) -> int:
    """The length of an integer column `[N]` or `[N, 1]`; WeightsError if not, or not `count`."""
    try:
        shape = source.shape(key)
        dtype = source.read(key, 0, 0).dtype if shape else None
    except SourceError as error:
        raise WeightsError(str(error)) from error
    where = f"{source.description}: {key!r}"
    if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)):
        raise WeightsError(f"{where}: expected one number an id, got {list(shape)}")
    if dtype not in _NUMBERS:
        raise WeightsError(f"{where}: expected whole numbers, got {dtype}")
    if count not in (None, shape[0]):
        raise WeightsError(f"{where}: expected {counted(count or 0, 'number')}, got {shape[0]}")
    return shape[0]


def read_column(source: WeightSource, key: str, start: int, stop: int) -> Ids:
    """Elements `[start, stop)` of a checked column as int64; WeightsError if unreadable."""
    try:
        return as_ids(source.read(key, start, stop).reshape(stop - start).numpy())
    except SourceError as error:
        raise WeightsError(str(error)) from error


def as_ids(numbers: NDArray[np.generic]) -> Ids:
    """Integers of any width as int64; uint64 bit for bit."""
    if numbers.dtype == np.uint64:
        return numbers.view(np.int64)
    return numbers.astype(np.int64, copy=False)


def chunks_of(count: int) -> Iterator[tuple[int, int]]:
    """The ranges in which a column of this length is read."""
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)


def by_position(source: WeightSource, key: str, count: int) -> Iterator[Chunk]:
    """Ids of a column, each with its position as its row."""
    for start, stop in chunks_of(count):
        yield read_column(source, key, start, stop), np.arange(start, stop)


def counts_by_position(source: WeightSource, key: str, count: int) -> Iterator[Chunk]:
    """Positions (rows) and the counts of a column."""
    for numbers, rows in by_position(source, key, count):
        yield rows, numbers
