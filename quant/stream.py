"""Quantizes a table a chunk at a time, so that no table need be in memory."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import RowFormat
from quant.report import ErrorMeter
from quant.rowwise import UnrepresentableRowError, encode
from quant.source import WeightSource

CHUNK_ELEMENTS = 2**22  # 16 MiB of fp32: large enough to amortise calls, small beside any table


def quantize_rows(
    source: WeightSource,
    key: str,
    row_format: RowFormat,
    meter: ErrorMeter,
    *,
    table: str,
    first_row: int,
    last_row: int,
    on_bytes: Callable[[int], None],
    clip: bool = True,
) -> Iterator[Tensor]:
    """Stored rows of a range of a table.

    Args:
        source: where the weight is.
        key: its name there.
        row_format: how to store it.
        meter: told of every chunk.
        table: the table's name, for errors.
        first_row: first row to read.
        last_row: one past the last.
        on_bytes: called with the fp32 bytes of each chunk done.
        clip: search the range of int4 and int2 rows.

    Yields:
        uint8 `[n, row_bytes]`.

    Raises:
        InputError: a row cannot be stored; names the table and the row.
    """
    dim = source.shape(key)[1]
    step = max(1, CHUNK_ELEMENTS // dim)
    for start in range(first_row, last_row, step):
        rows = source.read(key, start, min(start + step, last_row)).to(torch.float32)
        try:
            stored = encode(row_format, rows, clip=clip)
        except UnrepresentableRowError as error:
            raise InputError(
                f"table {table!r}, row {start + error.row}: {error.reason}, so it cannot be "
                f"stored as {row_format}"
            ) from error
        meter.add(rows, stored)
        yield stored
        on_bytes(rows.numel() * 4)
