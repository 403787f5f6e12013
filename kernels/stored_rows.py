"""Decoding of stored rows to numbers, or to rows of fewer columns."""

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import HEADER_BYTES, RowFormat

FLOATS = {
    RowFormat.FP32: torch.float32,
    RowFormat.FP16: torch.float16,
    RowFormat.BF16: torch.bfloat16,
}


def decode(row_format: RowFormat, rows: Tensor, dim: int) -> Tensor:
    """Decodes stored rows, uint8 `[n, row_bytes]`, to fp32 `[n, dim]`.

    Raises InputError if `rows` is not uint8 `[n, row_format.row_bytes(dim)]`.
    """
    row_bytes = row_format.row_bytes(dim)
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != row_bytes:
        raise InputError(
            f"rows: expected uint8 [n, {row_bytes}] for {row_format} rows of dim {dim}, "
            f"got {rows.dtype} {list(rows.shape)}"
        )
    # Copies, because a view of wider numbers needs even strides and an even first byte; of a single
    # row, contiguous() would keep odd ones.
    layout = torch.contiguous_format
    if row_format in FLOATS:
        return rows.clone(memory_format=layout).view(FLOATS[row_format]).float()
    head = rows[:, :HEADER_BYTES].clone(memory_format=layout)
    payload = rows[:, HEADER_BYTES:]
    if row_format is RowFormat.FP8:
        scale = head.view(torch.float32)
        return scale * payload.clone(memory_format=layout).view(torch.float8_e4m3fn).float()
    scale_bias = head.view(torch.float16).float()
    levels = unpack(payload, row_format.element_bits)[:, :dim].float()
    return scale_bias[:, :1] * levels + scale_bias[:, 1:]


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Unsigned integers of 2, 4 or 8 bits from bytes, the first of a byte in its lowest bits.

    From uint8 `[n, bytes]` to uint8 `[n, bytes * 8 / bits]`.
    """
    if bits == 8:
        return packed
    shifts = range(0, 8, bits)
    parts = [(packed >> shift) & (2**bits - 1) for shift in shifts]
    return torch.stack(parts, dim=2).flatten(1)


def select_columns(row_format: RowFormat, rows: Tensor, start: int, stop: int) -> Tensor:
    """Columns `[start, stop)` of stored rows, as contiguous rows with their scale and bias.

    From uint8 `[n, row_bytes]` to uint8 `[n, row_format.row_bytes(stop - start)]`. Raises
    InputError if the columns do not begin or end at a byte.
    """
    header, bits = row_format.header_bytes, row_format.element_bits
    first_bit, last_bit = start * bits, stop * bits
    last_byte = header + -(-last_bit // 8)
    if first_bit % 8 or (last_bit % 8 and last_byte != rows.shape[1]):
        raise InputError(
            f"columns [{start}, {stop}) of {row_format} rows share a byte with others; expected "
            f"multiples of {8 // bits}"
        )
    return torch.cat([rows[:, :header], rows[:, header + first_bit // 8 : last_byte]], dim=1)
