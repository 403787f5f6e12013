"""Means from pooled sums, for kernels that sum."""

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.fused_tables import FusedTables


class MeanPooling:
    """Divides the sums of averaged features by their bags' lengths."""

    def __init__(self, tables: FusedTables) -> None:
        device = tables.memory.device
        self._dims = torch.tensor(tables.dims, dtype=torch.int64, device=device)
        self._means = torch.tensor(tables.means, device=device)
        self._has_means = any(tables.means)

    def apply(self, pooled: Tensor, bags: Bags) -> None:
        """Divides fp32 `[B, total_dim]` sums, in place."""
        if self._has_means:
            lengths = torch.where(self._means[:, None], bags.lengths, 1)
            divide_by_lengths(pooled, lengths, self._dims)


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
