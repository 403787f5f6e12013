"""Turns pooled sums into means, for kernels that sum."""

import torch
from torch import Tensor


def divide_by_lengths(pooled: Tensor, lengths: Tensor, dims: Tensor) -> None:
    """Divides each pooled sum by its bag's length, in place; an empty bag stays as it is.

    A product with the rounded reciprocal, as in FBGEMM's MEAN pooling: equal to it bit for bit.

    Args:
        pooled: fp32 `[B, sum of dims]`, changed in place.
        lengths: int64 `[F, B]`.
        dims: int64 `[F]`, columns of each feature.
    """
    reciprocals = lengths.clamp(min=1).float().reciprocal()  # [F, B]
    pooled.mul_(torch.repeat_interleave(reciprocals.t(), dims, dim=1))
