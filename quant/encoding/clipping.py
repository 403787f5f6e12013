"""Clipping of rows before low-bit storage: a smaller range, with finer steps inside.

    for each row: from [min, max], shrink the end that costs less, step by step
    keep the range of least squared error; [min, max] itself is the first tried, so none is worse

The greedy search of "Post-Training 4-bit Quantization on Embedding Tables" (Guan et al. 2019,
arXiv:1911.02079), all rows at once; the error is that of the stored row, with its scale and bias
rounded to fp16.
"""

import torch
from torch import Tensor

_STEPS = 24  # shrinkings of a row's range
_STEP_SHARE = 0.02  # of its range, each


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
