"""SASRec: a causal transformer over the user's history, and its dot product with a candidate."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.history import (
    SequenceSizes,
    candidate_dim,
    check_counts,
    check_heads,
    last_steps,
    split_heads,
    steps_to_last,
    without_padding,
)
from sharded_infer.zoo.mlp import MLP


class SASRecBlock(nn.Module):
    """Causal self-attention and a feed-forward layer, `x + g(LayerNorm(x))` each.

    Equations 2 to 5 of Kang and McAuley 2018, with several heads and without dropout.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(dim)
        self.projections = nn.Linear(dim, 3 * dim)
        self.attended = nn.Linear(dim, dim)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = MLP([dim, dim, dim], activate_last=False)

    def forward(self, steps: Tensor) -> Tensor:
        """Maps float `[B, L, dim]` to the same; a step depends on itself and those before it."""
        projected = self.projections(self.attention_norm(steps)).chunk(3, dim=2)
        query, key, value = (split_heads(part, self.heads) for part in projected)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        steps = steps + self.attended(mixed.transpose(1, 2).flatten(2))
        fed: Tensor = self.feed_forward(self.feed_forward_norm(steps))
        return steps + fed


class SASRec(nn.Module):
    """The model of Kang and McAuley 2018, "Self-Attentive Sequential Recommendation".

    arXiv:1808.09781. Positions count from the last step, as in the paper, which pads on the left.
    Right padding is behind the last step, where causal attention does not see it.

    With `counts_from_first`, positions count from the first step. A step then depends on those
    before it alone, so that its state can be kept while the history grows.

    Args:
        feature_dims: embedding width of the pooled features: the candidate alone.
        history: its first member is of the candidate's table; a linear layer maps its steps to the
            candidate's dim.
        blocks: number of transformer blocks.
        heads: of each block.

    Raises:
        SpecError: candidate and history do not fit, other pooled features, a size below 1, or heads
            that do not divide the dim.
    """

    def __init__(
        self,
        *,
        feature_dims: Sequence[int],
        history: SequenceSizes,
        blocks: int,
        heads: int,
        counts_from_first: bool = False,
    ) -> None:
        super().__init__()
        dim = candidate_dim("SASRec", feature_dims, history)
        if len(feature_dims) != 1:
            raise SpecError(
                f"a SASRec takes one pooled feature, the candidate, got {len(feature_dims)}"
            )
        check_counts("SASRec", {"blocks": blocks})
        check_heads("SASRec", dim, heads)
        self.steps = nn.Linear(history.width, dim)
        self.positions = nn.Embedding(history.max_length, dim)
        self.blocks = nn.ModuleList(SASRecBlock(dim, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)
        self.counts_from_first = counts_from_first

    def user(self, history: Tensor, history_lengths: Tensor) -> Tensor:
        """The user's vector, fp32 `[B, D]`; arguments of `logits`."""
        steps = self.steps(without_padding(history, history_lengths))
        if self.counts_from_first:
            steps = steps + self.positions(torch.arange(steps.shape[1], device=steps.device))
        else:
            most = self.positions.num_embeddings - 1
            steps = steps + self.positions(steps_to_last(history, history_lengths, most))
        for block in self.blocks:
            steps = block(steps)
        user: Tensor = self.norm(last_steps(steps, history_lengths))
        return user

    def logits(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        """Log-odds of a click before the sigmoid, fp32 `[B]`.

        Args:
            history: fp32 `[B, L, W]`, right-padded.
            history_lengths: int64 `[B]`.
            embeddings: fp32 `[B, D]`, the candidates.
        """
        return (self.user(history, history_lengths) * embeddings).sum(1)

    def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        """Probability of a click, fp32 `[B]`; arguments of `logits`."""
        return torch.sigmoid(self.logits(history, history_lengths, embeddings))
