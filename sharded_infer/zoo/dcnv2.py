"""DCNv2: explicit feature crosses through low-rank matrices."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.mlp import MLP


class CrossLayer(nn.Module):
    """One low-rank cross: `x_{l+1} = x_0 * (W_l V_l x_l + b_l) + x_l`.

    Equation 2 of Wang et al. 2021, "DCN V2" (arXiv:2008.13535), without the nonlinearity and the
    gating of its mixture of experts. `width` is the length of `x_0`, `rank` the inner width of `W_l
    V_l`.
    """

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)  # V_l
        self.up = nn.Linear(rank, width)  # W_l and b_l

    def forward(self, first: Tensor, crossed: Tensor) -> Tensor:
        """Crosses `crossed` (`x_l`) with `first` (`x_0`), both float `[B, width]`."""
        return torch.addcmul(crossed, first, self.up(self.down(crossed)))


class DCNv2(nn.Module):
    """The tower of MLPerf's DLRM-v2: bottom MLP, low-rank cross network, top MLP.

    Args:
        dense_width: width K of the dense input.
        feature_dims: embedding width of each feature; they may differ.
        bottom: width of each layer of the bottom MLP.
        top: width of each layer of the top MLP; the last is 1.
        cross_rank: inner width of each cross's low-rank matrix.

    Raises:
        SpecError: no features, an empty or non-positive size, or a top that does not end with 1.
    """

    def __init__(
        self,
        *,
        dense_width: int,
        feature_dims: Sequence[int],
        bottom: Sequence[int],
        top: Sequence[int],
        cross_layers: int,
        cross_rank: int,
    ) -> None:
        super().__init__()
        if not feature_dims or min(feature_dims) < 1:
            raise SpecError(
                f"a DCNv2 needs at least one feature, of positive dims, got {list(feature_dims)}"
            )
        if not top or top[-1] != 1:
            raise SpecError(f"a DCNv2's top layers must end with 1, got {list(top)}")
        for option, size in (("cross_layers", cross_layers), ("cross_rank", cross_rank)):
            if size < 1:
                raise SpecError(f"a DCNv2's {option} must be at least 1, got {size}")
        self.bottom = MLP([dense_width, *bottom], activate_last=True)
        width = bottom[-1] + sum(feature_dims)
        self.crosses = nn.ModuleList(CrossLayer(width, cross_rank) for _ in range(cross_layers))
        self.top = MLP([width, *top], activate_last=False)

    def logits(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Log-odds of a click before the sigmoid, fp32 `[B]`.

        `dense` is fp32 `[B, K]`; `embeddings`, fp32 `[B, sum of feature_dims]`, are the pooled
        features concatenated.
        """
        first = torch.cat([self.bottom(dense), embeddings], dim=1)  # [B, width]
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        top: Tensor = self.top(crossed)  # [B, 1]
        return top.squeeze(1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Probability of a click, fp32 `[B]`; arguments of `logits`."""
        return torch.sigmoid(self.logits(dense, embeddings))
