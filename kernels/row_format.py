"""Row formats: the exact bytes of one stored row, and how to read them back.

| format | bytes of a row of dim D | layout |
| --- | --- | --- |
| fp32 | 4 D | D single-precision values |
| fp16 | 2 D | D half-precision values |
| bf16 | 2 D | D bfloat16 values |
| fp8 | 4 + D | fp32 scale, D float8 e4m3 values q; value = scale * q |
| int8 | 4 + D | fp16 scale, fp16 bias, D unsigned bytes q; value = scale * q + bias |
| int4 | 4 + ceil(D / 2) | as int8, two q a byte, the first in the low bits |
| int2 | 4 + ceil(D / 4) | as int8, four q a byte, the first in the lowest bits |

fp32, fp16, int8, int4 and int2 rows are byte for byte those of FBGEMM's inference table-batched
embedding with row alignment 1 (scale and bias at the head of the row), so its kernel reads our
tables in place; it knows no row whose last byte is not full. fp8 is e4m3 of OCP's 8-bit floating
point specification (2023), which has no infinities. All values are little-endian.
"""

from enum import StrEnum

import torch
from torch import Tensor

from kernels.errors import InputError

HEADER_BYTES = 4  # one fp16 scale and one fp16 bias, or one fp32 scale


class RowFormat(StrEnum):
    """How a row is stored; the value is the name used in specs, manifests and metrics."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    INT2 = "int2"

    @property
    def is_integer(self) -> bool:
        """Whether rows are unsigned integers with a scale and a bias."""
        return self in {RowFormat.INT8, RowFormat.INT4, RowFormat.INT2}

    @property
    def header_bytes(self) -> int:
        """Bytes before the row's first element (scale and bias)."""
        return HEADER_BYTES if self.is_integer or self is RowFormat.FP8 else 0

    @property
    def element_bits(self) -> int:
        """Bits of one element of the row."""
        return _ELEMENT_BITS[self]

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of `dim` elements."""
        return self.header_bytes + -(-self.element_bits * dim // 8)


_ELEMENT_BITS = {
    RowFormat.FP32: 32,
    RowFormat.FP16: 16,
    RowFormat.BF16: 16,
    RowFormat.FP8: 8,
    RowFormat.INT8: 8,
    RowFormat.INT4: 4,
    RowFormat.INT2: 2,
}
_FLOATS = {
    RowFormat.FP32: torch.float32,
    RowFormat.FP16: torch.float16,
    RowFormat.BF16: torch.bfloat16,
}


def decode(row_format: RowFormat, rows: Tensor, dim: int) -> Tensor:
    """Stored rows as numbers.

    Args:
        row_format: how the rows are stored.
        rows: uint8 `[n, row_bytes]`.
        dim: elements of a row.

    Returns:
        fp32 `[n, dim]`.

    Raises:
        InputError: `rows` is not uint8 `[n, row_format.row_bytes(dim)]`.
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
    if row_format in _FLOATS:
        return rows.clone(memory_format=layout).view(_FLOATS[row_format]).float()
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

    Args:
        packed: uint8 `[n, bytes]`.
        bits: of an integer.

    Returns:
        uint8 `[n, bytes * 8 / bits]`.
    """
    if bits == 8:
        return packed
    shifts = range(0, 8, bits)
    parts = [(packed >> shift) & (2**bits - 1) for shift in shifts]
    return torch.stack(parts, dim=2).flatten(1)


def pack(levels: Tensor, bits: int) -> Tensor:
    """Bytes of unsigned integers; the last byte is filled with zeros. The reverse of `unpack`.

    Args:
        levels: uint8 `[n, count]`, each below 2 to the power of `bits`.
        bits: of an integer.

    Returns:
        uint8 `[n, ceil(count * bits / 8)]`.
    """
    if bits == 8:
        return levels
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(levels, (0, -levels.shape[1] % per_byte))
    grouped = padded.view(len(levels), padded.shape[1] // per_byte, per_byte)
    packed = grouped[:, :, 0].clone()
    for index in range(1, per_byte):
        packed |= grouped[:, :, index] << (bits * index)
    return packed


def select_columns(row_format: RowFormat, rows: Tensor, start: int, stop: int) -> Tensor:
    """The columns `[start, stop)` of stored rows, as rows of their own (with their scale and bias).

    Args:
        row_format: how the rows are stored.
        rows: uint8 `[n, row_bytes]`.
        start: first column.
        stop: one past the last column.

    Returns:
        uint8 `[n, row_format.row_bytes(stop - start)]`, contiguous.

    Raises:
        InputError: the columns do not begin at a byte, or end within one that other columns share.
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
