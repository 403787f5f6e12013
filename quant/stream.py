"""Quantization of tables a chunk at a time on all cores, so no table has to fit in memory."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import RowFormat
from quant.encoder import (
    EncodedRows,
    UnrepresentableRowError,
    encode_rows,
    encode_zeroing,
    squares_of,
)
from quant.error_meter import ChunkErrors, errors_of
from quant.sources.table_weight import TableWeight

# 2 MiB of fp32: large enough to amortise a call, small enough for a core's own cache, so that the
# memory of all cores together stays small beside any table.
_CHUNK_ELEMENTS = 2**19
_AHEAD = 2  # chunks encoded beside those that the workers hold, so that none waits for the writer


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `[first_row, last_row)` of a table, to be stored in a format.

    Attributes:
        row_format: the weight's own if it is already quantized.
        clip: search the range of int4 and int2 rows.
        zero_nonfinite: store NaN and infinities as 0 instead of refusing them.
    """

    table: str
    weight: TableWeight
    row_format: RowFormat
    first_row: int
    last_row: int
    clip: bool = True
    zero_nonfinite: bool = False


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """Consecutive rows of a table, encoded.

    Attributes:
        stored: uint8 `[n, row_bytes]`; its memory is reused for the next chunk.
        buffer: reusable memory that `stored` may lie in; None if it lies elsewhere.
    """

    table: str
    stored: Tensor
    errors: ChunkErrors
    fp32_bytes: int
    buffer: Tensor | None = None


def chunk_rows(dim: int) -> int:
    """Rows of a chunk; the last of a range may have fewer."""
    return max(1, _CHUNK_ELEMENTS // dim)


def encode_ranges(ranges: Iterable[RowRange], workers: int | None = None) -> Iterator[EncodedChunk]:
    """Encode ranges of rows in parallel, and yield their chunks in order.

    `workers` None is a thread for each usable core. Each runs torch with one intra-op thread:
    meanwhile torch's setting changes for the whole process. Raises InputError, naming the table and
    the row, if a row cannot be stored.
    """
    count = workers or len(os.sched_getaffinity(0))
    pending: deque[Future[EncodedChunk]] = deque()
    # New memory for each chunk would be faulted in page by page, which costs half of encoding it.
    buffers: deque[Tensor] = deque()
    with _one_intra_op_thread(), ThreadPoolExecutor(count, "quantize") as pool:
        try:
            for job in _jobs(ranges):
                pending.append(pool.submit(job, buffers))
                if len(pending) >= count + _AHEAD:
                    yield from _result(pending.popleft(), buffers)
            while pending:
                yield from _result(pending.popleft(), buffers)
        finally:
            # An error, or a caller that stops early: pending work is cancelled.
            pool.shutdown(wait=True, cancel_futures=True)


def _result(done: Future[EncodedChunk], buffers: deque[Tensor]) -> Iterator[EncodedChunk]:
    chunk = done.result()
    yield chunk
    if chunk.buffer is not None:
        buffers.append(chunk.buffer)


def _jobs(ranges: Iterable[RowRange]) -> "Iterator[_Job]":
    for one in ranges:
        step = chunk_rows(one.weight.dim)
        for start in range(one.first_row, one.last_row, step):
            yield _Job(one, start, min(start + step, one.last_row))


@dataclass(frozen=True, slots=True)
class _Job:
    range: RowRange
    start: int
    stop: int

    def __call__(self, buffers: deque[Tensor]) -> EncodedChunk:
        one = self.range
        fp32_bytes, zeroed = 4 * (self.stop - self.start) * one.weight.dim, 0
        if one.weight.stored is not None:
            rows = _taken_over(one.weight, self.start, self.stop)
            return EncodedChunk(one.table, rows.stored, errors_of(rows), fp32_bytes)
        numbers = one.weight.read(self.start, self.stop)
        needed = len(numbers) * one.row_format.row_bytes(one.weight.dim)
        buffer = _taken(buffers, needed) if one.row_format.is_integer else None
        try:
            if one.zero_nonfinite:
                encoded, zeroed = encode_zeroing(one.row_format, numbers, clip=one.clip, out=buffer)
            else:
                encoded = encode_rows(one.row_format, numbers, clip=one.clip, out=buffer)
        except UnrepresentableRowError as error:
            raise InputError(
                f"table {one.table!r}, row {self.start + error.row}: {error.reason}, so it cannot "
                f"be stored as {one.row_format}"
            ) from error
        errors = errors_of(encoded, zeroed)
        return EncodedChunk(one.table, encoded.stored, errors, fp32_bytes, buffer)


def _taken(buffers: deque[Tensor], needed: int) -> Tensor:
    try:
        buffer = buffers.popleft()
    except IndexError:
        return torch.empty(needed, dtype=torch.uint8)
    return buffer if len(buffer) >= needed else torch.empty(needed, dtype=torch.uint8)


def _taken_over(weight: TableWeight, start: int, stop: int) -> EncodedRows:
    none = torch.zeros(stop - start)
    squares = squares_of(weight.read(start, stop))
    return EncodedRows(weight.read_stored(start, stop).contiguous(), none, squares, none)


@contextmanager
def _one_intra_op_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
