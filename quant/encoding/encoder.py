"""Encoding of rows with the fastest encoder, and measurement of their errors."""

import torch
from torch import Tensor

from kernels.machine import instruction_sets
from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant.encoding.encoded_rows import EncodedRows, UnrepresentableRowError, squares_of
from quant.encoding.native_encoder import MAX_DIM, encode_native
from quant.encoding.rowwise import encode


def encoder_name() -> str:
    """The encoder of integer rows: `native` with its instruction set."""
    return f"native {max(instruction_sets()).name.lower()}"


def encode_rows(
    row_format: RowFormat, rows: Tensor, *, clip: bool = True, out: Tensor | None = None
) -> EncodedRows:
    """Encode fp32 rows `[n, dim]` as stored rows, with their errors.

    Compiled code encodes integer rows of up to 8,192 numbers, torch the rest; the bytes are the
    same.

    Args:
        rows: fp32 `[n, dim]`.
        clip: search the range of int4 and int2 rows.
        out: uint8 `[bytes]`, memory that the rows may use.

    Raises:
        UnrepresentableRowError: a row holds NaN or infinity, or exceeds the format's range.
        InputError: `rows` is not fp32 `[n, dim]`.
    """
    if row_format.is_integer and rows.shape[1] <= MAX_DIM:
        return encode_native(row_format, rows, clip=clip, out=out)
    stored = encode(row_format, rows, clip=clip)
    squares = squares_of(rows)
    if row_format is RowFormat.FP32:
        none = torch.zeros(len(rows))
        return EncodedRows(stored, none, squares, none)
    error = decode(row_format, stored, rows.shape[1]).sub_(rows)
    minmax = None
    if clip and row_format in {RowFormat.INT4, RowFormat.INT2}:
        plain = encode(row_format, rows, clip=False)
        minmax = squares_of(decode(row_format, plain, rows.shape[1]).sub_(rows))
    largest = error.abs().amax(1) if len(rows) else torch.zeros(0)
    return EncodedRows(stored, squares_of(error), squares, largest, minmax)


def encode_zeroing(
    row_format: RowFormat, rows: Tensor, *, clip: bool = True, out: Tensor | None = None
) -> tuple[EncodedRows, int]:
    """Encodes rows like `encode_rows`, with NaN and infinities stored as 0, and counts these.

    Errors are those of the finite values. Raises UnrepresentableRowError if a row exceeds the
    format's range.
    """
    try:
        return encode_rows(row_format, rows, clip=clip, out=out), 0
    except UnrepresentableRowError:
        finite = torch.isfinite(rows)
        strange = int((~finite).sum())
        if not strange:
            raise
    rows = torch.where(finite, rows, 0.0)
    return encode_rows(row_format, rows, clip=clip, out=out), strange
