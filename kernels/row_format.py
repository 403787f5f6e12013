"""Row formats: the exact bytes of one stored row, and how to read them back.

| format | bytes of a row of dim D | layout |
| --- | --- | --- |
| int8 | 4 + D | fp16 scale, fp16 bias, D unsigned bytes q; value = scale * q + bias |
| bf16 | 2 D | D bfloat16 values |

int8 rows are byte for byte those of FBGEMM's inference table-batched embedding with row alignment 1
(scale and bias at the head of the row), so its kernel reads our tables in place. All values are
little-endian.
"""

from enum import StrEnum

import torch
from torch import Tensor

from kernels.errors import InputError

SCALE_BIAS_BYTES = 4  # one fp16 scale and one fp16 bias


class RowFormat(StrEnum):
    """How a row is stored; the value is the name used in specs, manifests and metrics."""

    INT8 = "int8"
    BF16 = "bf16"

    @property
    def header_bytes(self) -> int:
        """Bytes before the row's first element (scale and bias)."""
        return SCALE_BIAS_BYTES if self is RowFormat.INT8 else 0

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the row."""
        return 1 if self is RowFormat.INT8 else 2

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row of `dim` elements."""
        return self.header_bytes + self.element_bytes * dim


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
    if row_format is RowFormat.BF16:
        return rows.clone(memory_format=layout).view(torch.bfloat16).float()
    head = rows[:, :SCALE_BIAS_BYTES].clone(memory_format=layout)
    scale_bias = head.view(torch.float16).float()
    return scale_bias[:, :1] * rows[:, SCALE_BIAS_BYTES:].float() + scale_bias[:, 1:]


def select_columns(row_format: RowFormat, rows: Tensor, start: int, stop: int) -> Tensor:
    """The columns `[start, stop)` of stored rows, as rows of their own (with their scale and bias).

    Args:
        row_format: how the rows are stored.
        rows: uint8 `[n, row_bytes]`.
        start: first column.
        stop: one past the last column.

    Returns:
        uint8 `[n, row_format.row_bytes(stop - start)]`, contiguous.
    """
    header, width = row_format.header_bytes, row_format.element_bytes
    payload = rows[:, header + start * width : header + stop * width]
    return torch.cat([rows[:, :header], payload], dim=1)
