"""Encoding of rows as integers by torch: the reference of the compiled encoder.

    low, high = a row's minimum and maximum
    with clip: from [low, high], shrink the end that costs less, step by step
    keep the range of least squared error; [low, high] itself is the first tried, so none is worse

The greedy search of "Post-Training 4-bit Quantization on Embedding Tables" (Guan et al. 2019,
arXiv:1911.02079), all rows at once; the error is that of the stored row, with its scale and bias
rounded to fp16. Without clip, FBGEMM's `FloatToFusedNBitRowwiseQuantizedSBHalf`, bit for bit:
TorchRec quantizes with it, at 8 bits too: levels are counted from the stored scale and bias.
FBGEMM's other int8, `quantize_embs`, counts them from the exact range and decodes with the rounded
one.
"""

import torch
from torch import Tensor

from kernels.row_format import RowFormat
from quant.encoder import UnrepresentableRowError, encode_rows

_STEPS = 24  # shrinkings of a row's range
_STEP_SHARE = 0.02  # of its range, each


def encode(row_format: RowFormat, rows: Tensor, *, clip: bool = True) -> Tensor:
    """fp32 rows `[n, dim]` as stored rows; floats as the product encodes them."""
    if not row_format.is_integer:
        return encode_rows(row_format, rows).stored
    bits = row_format.element_bits
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    _refuse(~torch.isfinite(high - low), "holds NaN, infinity, or a range beyond fp32")
    scale, bias = scale_and_bias(low, high, bits)
    finite = torch.isfinite(scale) & torch.isfinite(bias)
    _refuse(~finite, "its scale or bias is beyond fp16's range (65504)")
    if clip and row_format is not RowFormat.INT8:
        scale, bias = scale_and_bias(*search_range(rows, bits), bits)
    levels = levels_of(rows, scale, bias, bits).to(torch.uint8)
    head = torch.cat([scale, bias], dim=1).view(torch.uint8)
    return torch.cat([head, pack(levels, bits)], dim=1)


def pack(levels: Tensor, bits: int) -> Tensor:
    """The reverse of `stored_rows.unpack`; the last byte is filled with zeros.

    From uint8 `[n, count]`, each below `2^bits`, to uint8 `[n, ceil(count * bits / 8)]`.
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


def _refuse(bad: Tensor, reason: str) -> None:
    if bool(bad.any()):
        raise UnrepresentableRowError(int(bad.nonzero()[0, 0]), reason)


def search_range(rows: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The range of each finite fp32 row `[n, dim]` that stores it with the least squared error.

    Low and high end, fp32 `[n, 1]` each; values outside are stored as the nearer end.
    """
    low, high = torch.aminmax(rows, dim=1, keepdim=True)
    best_low, best_high = low, high
    best = _squared_error(rows, low, high, bits)
    step = (high - low) * _STEP_SHARE
    for _ in range(_STEPS):
        raised = _squared_error(rows, low + step, high, bits)
        lowered = _squared_error(rows, low, high - step, bits)
        raise_low = raised < lowered
        low = torch.where(raise_low, low + step, low)
        high = torch.where(raise_low, high, high - step)
        error = torch.where(raise_low, raised, lowered)
        better = error < best
        best = torch.where(better, error, best)
        best_low = torch.where(better, low, best_low)
        best_high = torch.where(better, high, best_high)
    return best_low, best_high


def scale_and_bias(low: Tensor, high: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale and bias, fp16 `[n, 1]`, for ranges, fp32 `[n, 1]`, as FBGEMM's NBit operators round.

    bias = fp16(low); scale = fp16((high - bias) / (2^bits - 1)), or 1 where that is 0 or so small
    that its reciprocal is infinite.
    """
    bias = low.to(torch.float16)
    span = high - bias.float()
    levels = torch.tensor(float(2**bits - 1))
    scale = torch.where(span == 0, 1.0, torch.div(span, levels)).to(torch.float16)
    unusable = (scale == 0) | torch.isinf(torch.reciprocal(scale.float()))
    return torch.where(unusable, torch.ones_like(scale), scale), bias


def levels_of(rows: Tensor, scale: Tensor, bias: Tensor, bits: int) -> Tensor:
    """The stored integers of rows: round_half_even((x - bias) * (1 / scale)), clamped.

    `rows` are fp32 `[n, dim]`, `scale` and `bias` fp16 `[n, 1]`. Returns fp32 `[n, dim]`, integers
    from 0 to 2^bits - 1.
    """
    inverse = torch.reciprocal(scale.float())
    return (rows - bias.float()).mul_(inverse).round_().clamp_(0, 2**bits - 1)


def _squared_error(rows: Tensor, low: Tensor, high: Tensor, bits: int) -> Tensor:
    scale, bias = scale_and_bias(low, high, bits)
    stored = levels_of(rows, scale, bias, bits).mul_(scale.float()).add_(bias.float())
    return stored.sub_(rows).square_().sum(1, keepdim=True)
