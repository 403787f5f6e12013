"""Row-wise quantization: fp32 rows to stored rows."""

import torch
from torch import Tensor

from kernels.errors import InputError
from kernels.row_format import RowFormat


class UnrepresentableRowError(InputError):
    """A row that its format cannot hold; `row` is its index in the rows given."""

    def __init__(self, row: int, reason: str) -> None:
        """Keeps the row's index, so that a caller who knows the table can name it."""
        super().__init__(f"row {row}: {reason}")
        self.row = row
        self.reason = reason


def encode(row_format: RowFormat, rows: Tensor) -> Tensor:
    """Numbers as stored rows.

    int8 is min-max, as FBGEMM's `FloatToFused8BitRowwiseQuantized` followed by its inference
    tables' narrowing of scale and bias to fp16 (`quantize_embs`), equal to it bit for bit:
    scale = (max - min) / 255, bias = min,
    q = round_half_even((x - min) * (255 / (max - min + 1e-8))).

    Args:
        row_format: how to store the rows.
        rows: fp32 `[n, dim]`.

    Returns:
        uint8 `[n, row_format.row_bytes(dim)]`.

    Raises:
        UnrepresentableRowError: a row holds NaN or infinity, or its scale or bias exceeds fp16.
        InputError: `rows` is not fp32 `[n, dim]`.
    """
    if rows.dtype != torch.float32 or rows.dim() != 2:
        raise InputError(f"rows: expected float32 [n, dim], got {rows.dtype} {list(rows.shape)}")
    if row_format is RowFormat.BF16:
        _refuse(~torch.isfinite(rows).all(1), "holds NaN or infinity")
        stored = rows.to(torch.bfloat16)
        _refuse(~torch.isfinite(stored).all(1), "holds a value beyond bf16's range")
        return stored.contiguous().view(torch.uint8)
    # NaN and infinity both survive into a row's minimum or range, so no pass of their own.
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    span = high - low
    _refuse(~torch.isfinite(span[:, 0]), "holds NaN, infinity, or a range beyond fp32")
    scale_bias = torch.cat([span / 255.0, low], dim=1).to(torch.float16)
    _refuse(~torch.isfinite(scale_bias).all(1), "its scale or bias is beyond fp16's range (65504)")
    # A true division: torch computes a number over a tensor as a product with its reciprocal.
    inverse = torch.div(torch.tensor(255.0), span + 1e-8)
    levels = (rows - low).mul_(inverse).round_().clamp_(0, 255).to(torch.uint8)
    return torch.cat([scale_bias.view(torch.uint8), levels], dim=1)


def _refuse(bad: Tensor, reason: str) -> None:
    if bool(bad.any()):
        raise UnrepresentableRowError(int(bad.nonzero()[0]), reason)
