"""Bags: the checked ids of a fused lookup, feature-major."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.errors import InputError


@dataclass(frozen=True, slots=True)
class Bags:
    """One bag of ids for every feature and sample; feature-major, like a KeyedJaggedTensor.

    Attributes:
        values: int64 `[N]`, the ids of bag (feature 0, sample 0), then (0, 1), and so on.
        lengths: int64 `[F, B]`, ids in each bag; sums to N.
        weights: fp32 `[N]`, one weight an id, or None.
    """

    values: Tensor
    lengths: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        """Raises InputError, with name, shape, dtype and expectation, for inconsistent arrays."""
        if self.values.dtype != torch.int64 or self.values.dim() != 1:
            raise InputError(
                f"values: expected int64 [N], got {self.values.dtype} {list(self.values.shape)}"
            )
        if self.lengths.dtype != torch.int64 or self.lengths.dim() != 2:
            raise InputError(
                "lengths: expected int64 [features, batch], "
                f"got {self.lengths.dtype} {list(self.lengths.shape)}"
            )
        weights = self.weights
        if weights is not None and (
            weights.dtype != torch.float32 or weights.shape != self.values.shape
        ):
            raise InputError(
                f"weights: expected float32 {list(self.values.shape)}, "
                f"got {weights.dtype} {list(weights.shape)}"
            )

    @classmethod
    def trusted(cls, values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> "Bags":
        """Bags of consistent arrays, without checks."""
        bags = object.__new__(cls)
        put = object.__setattr__
        put(bags, "values", values)
        put(bags, "lengths", lengths)
        put(bags, "weights", weights)
        return bags

    def offsets(self) -> Tensor:
        """Start of each bag in `values`, and the end of the last: int64 `[F * B + 1]`."""
        count = self.lengths.numel() + 1
        offsets = torch.zeros(count, dtype=torch.int64, device=self.lengths.device)
        torch.cumsum(self.lengths.reshape(-1), 0, out=offsets[1:])
        return offsets
