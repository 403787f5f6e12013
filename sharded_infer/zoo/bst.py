"""BST: a transformer block over the user's history with the candidate as its last step."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.history import (
    SequenceSizes,
    candidate_dim,
    check_counts,
    check_heads,
    is_padding,
    split_heads,
    time_buckets,
    without_padding,
)
from sharded_infer.zoo.mlp import MLP

_POSITIONS_DEVIATION = 0.02


class CandidateBlock(nn.Module):
    """A transformer block of steps and a candidate behind them, of which it returns the candidate.

    Equations 2 to 6 of Chen et al. 2019, without dropout, and with `x + g(LayerNorm(x))` in place
    of `LayerNorm(x + g(x))`, which needs warm-up (Xiong et al. 2020, arXiv:2002.04745). The steps'
    keys and values do not depend on the candidate.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.keys_values = nn.Linear(dim, 2 * dim)
        self.attended = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.LeakyReLU(), nn.Linear(4 * dim, dim)
        )
        self.feed_forward_norm = nn.LayerNorm(dim)

    def forward(self, steps: Tensor, padding: Tensor, candidate: Tensor) -> Tensor:
        """The candidate after the block, float `[B, dim]`.

        Args:
            steps: float `[B, L, dim]`.
            padding: bool `[B, L]`, true for steps to ignore.
            candidate: float `[B, dim]`.
        """
        last = self.attention_norm(candidate).unsqueeze(1)
        query = split_heads(self.query(last), self.heads)  # [B, heads, 1, d]
        keys, values = self._keys_values(self.attention_norm(steps))  # [B, heads, L, d]
        last_key, last_value = self._keys_values(last)
        unseen = padding.unsqueeze(1).unsqueeze(2)
        logits = (query @ keys.transpose(2, 3)).masked_fill(unseen, -math.inf)
        # The candidate attends to itself, so that no row is all -inf.
        logits = torch.cat([logits, (query * last_key).sum(3, keepdim=True)], dim=3)
        weights = torch.softmax(logits / math.sqrt(query.shape[3]), dim=3)  # [B, heads, 1, L + 1]
        mixed = weights[:, :, :, :-1] @ values + weights[:, :, :, -1:] * last_value
        candidate = candidate + self.attended(mixed.flatten(1))
        fed: Tensor = self.feed_forward(self.feed_forward_norm(candidate))
        return candidate + fed

    def _keys_values(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.keys_values(rows).chunk(2, dim=2)
        return split_heads(keys, self.heads), split_heads(values, self.heads)


class BST(nn.Module):
    """The tower of Chen et al. 2019, "Behavior Sequence Transformer" (arXiv:1905.06874).

    One block, the paper's best. A step's position is the time since it. The paper's MLP gets all of
    the block's outputs, for histories of one length; here the candidate's output and its product
    with the candidate, with ReLUs.

    Args:
        feature_dims: embedding width of each pooled feature; the first is the candidate.
        history: its first member is of the candidate's table; a linear layer maps its steps to the
            candidate's dim. It has the dense companion `age`.
        heads: of the block.
        time_buckets: number of positions.
        top: width of each layer of the top MLP; the last is 1.

    Raises:
        SpecError: candidate and history do not fit, a size below 1, heads that do not divide the
            dim, or a top that does not end with 1.
    """

    def __init__(
        self,
        *,
        feature_dims: Sequence[int],
        history: SequenceSizes,
        heads: int,
        time_buckets: int,
        top: Sequence[int],
    ) -> None:
        super().__init__()
        self.dim = candidate_dim("BST", feature_dims, history)
        check_counts("BST", {"time_buckets": time_buckets})
        check_heads("BST", self.dim, heads)
        if not top or top[-1] != 1:
            raise SpecError(f"a BST's top layers must end with 1, got {list(top)}")
        self.steps = nn.Linear(history.width, self.dim)
        self.positions = nn.Embedding(time_buckets, self.dim)
        # Small beside trained rows: torch's own deviation of 1 would hide them.
        nn.init.normal_(self.positions.weight, std=_POSITIONS_DEVIATION)
        self.block = CandidateBlock(self.dim, heads)
        self.top = MLP([2 * self.dim + sum(feature_dims), *top], activate_last=False)

    def logits(
        self, history: Tensor, history_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        """Log-odds of a click before the sigmoid, fp32 `[B]`.

        Args:
            history: fp32 `[B, L, W]`, right-padded.
            history_lengths: int64 `[B]`.
            age: fp32 `[B, L, 1]`, seconds from each step to the request.
            embeddings: fp32 `[B, sum of feature_dims]`, the pooled features concatenated.
        """
        buckets = time_buckets(age.squeeze(2), self.positions.num_embeddings)
        steps = self.steps(without_padding(history, history_lengths)) + self.positions(buckets)
        padding = is_padding(history, history_lengths)
        candidate = embeddings[:, : self.dim]
        found = self.block(steps, padding, candidate + self.positions.weight[0])
        inputs = torch.cat([found, embeddings, found * candidate], dim=1)
        top: Tensor = self.top(inputs)  # [B, 1]
        return top.squeeze(1)

    def forward(
        self, history: Tensor, history_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        """Probability of a click, fp32 `[B]`; arguments of `logits`."""
        return torch.sigmoid(self.logits(history, history_lengths, age, embeddings))
