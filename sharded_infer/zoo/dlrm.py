"""DLRM: pairwise dot products between the dense features and every embedding."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.mlp import MLP


class DLRM(nn.Module):
    """The tower of Naumov et al. 2019, "Deep Learning Recommendation Model" (arXiv:1906.00091).

    The bottom MLP maps the dense features to a vector of the embeddings' width. The top MLP takes
    that vector and the dot products of all pairs of vectors, the bottom MLP's included.

    Args:
        dense_width: width K of the dense input.
        feature_dims: embedding width of each of the F features; all the same d.
        bottom: width of each layer of the bottom MLP; the last is d.
        top: width of each layer of the top MLP; the last is 1.

    Raises:
        SpecError: no features, features of different widths, or other widths than these.
    """

    # int64 [(F + 1) F / 2], the strict lower triangle's positions in a flat [F + 1, F + 1] matrix
    pairs: Tensor

    def __init__(
        self,
        *,
        dense_width: int,
        feature_dims: Sequence[int],
        bottom: Sequence[int],
        top: Sequence[int],
    ) -> None:
        super().__init__()
        if not feature_dims:
            raise SpecError("a DLRM needs at least one feature, got none")
        dim = feature_dims[0]
        for position, other in enumerate(feature_dims):
            if other != dim:
                raise SpecError(
                    "a DLRM needs features of one dim: "
                    f"feature 0 has dim {dim}, feature {position} has dim {other}"
                )
        if not bottom or bottom[-1] != dim:
            raise SpecError(
                f"a DLRM's bottom layers must end with the features' dim {dim}, got {list(bottom)}"
            )
        if not top or top[-1] != 1:
            raise SpecError(f"a DLRM's top layers must end with 1, got {list(top)}")
        self.feature_count = len(feature_dims)
        self.dim = dim
        vectors = self.feature_count + 1
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        # Not persistent: it is derived from the sizes, so checkpoints need not hold it.
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)
        self.bottom = MLP([dense_width, *bottom], activate_last=True)
        self.top = MLP([dim + self.pairs.numel(), *top], activate_last=False)

    def logits(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Log-odds of a click before the sigmoid, fp32 `[B]`.

        `dense` is fp32 `[B, K]`; `embeddings`, fp32 `[B, F * d]`, are the pooled features
        concatenated.
        """
        bottom = self.bottom(dense)  # [B, d]
        pooled = embeddings.reshape(-1, self.feature_count, self.dim)  # [B, F, d]
        vectors = torch.cat([bottom.unsqueeze(1), pooled], dim=1)  # [B, F + 1, d]
        products = torch.bmm(vectors, vectors.transpose(1, 2))  # [B, F + 1, F + 1]
        interactions = products.flatten(1).index_select(1, self.pairs)
        top: Tensor = self.top(torch.cat([bottom, interactions], dim=1))  # [B, 1]
        return top.squeeze(1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Probability of a click, fp32 `[B]`; arguments of `logits`."""
        return torch.sigmoid(self.logits(dense, embeddings))
