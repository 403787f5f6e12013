"""DIN: interest in a candidate, from attention over the user's history."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.history import SequenceSizes, candidate_dim, check_counts, without_padding
from sharded_infer.zoo.mlp import MLP


class ActivationUnit(nn.Module):
    """Weight of each step of a history for a candidate; not normalised over the steps.

    `w_2 PReLU(W_1 [h, c, h * c] + b_1) + b_2`, for a step `h` and a candidate `c`. The first layer
    can compute the released code's input `h - c` from the others. Its columns of `h` cost once a
    step and those of `c` once a candidate; only those of `h * c` cost for every pair.

    Args:
        width: of a step.
        dim: of a candidate, and of the part of a step that is of the same table.
        hidden: width of the first layer.
    """

    def __init__(self, width: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.dim = dim
        self.step = nn.Linear(width, hidden)
        self.candidate = nn.Linear(dim, hidden, bias=False)
        self.product = nn.Linear(dim, hidden, bias=False)
        self.activation = nn.PReLU()
        self.last = nn.Linear(hidden, 1)

    def forward(self, history: Tensor, candidate: Tensor) -> Tensor:
        """Weights, float `[B, L]`, of `history` `[B, L, width]` for `candidate` `[B, dim]`."""
        products = self.product(history[:, :, : self.dim] * candidate.unsqueeze(1))
        first = products + self.step(history) + self.candidate(candidate).unsqueeze(1)
        weights: Tensor = self.last(self.activation(first))  # [B, L, 1]
        return weights.squeeze(2)


class DIN(nn.Module):
    """The tower of Zhou et al. 2018, "Deep Interest Network" (arXiv:1706.06978).

    Its MLP has ReLUs in place of the paper's Dice.

    Args:
        feature_dims: embedding width of each pooled feature; the first is the candidate.
        history: its first member is of the candidate's table.
        attention: width of the activation unit's hidden layer.
        top: width of each layer of the top MLP; the last is 1.

    Raises:
        SpecError: candidate and history do not fit, a size below 1, or a top that does not end with
            1.
    """

    def __init__(
        self,
        *,
        feature_dims: Sequence[int],
        history: SequenceSizes,
        attention: int,
        top: Sequence[int],
    ) -> None:
        super().__init__()
        self.dim = candidate_dim("DIN", feature_dims, history)
        check_counts("DIN", {"attention": attention})
        if not top or top[-1] != 1:
            raise SpecError(f"a DIN's top layers must end with 1, got {list(top)}")
        self.attention = ActivationUnit(history.width, self.dim, attention)
        self.top = MLP([history.width + sum(feature_dims), *top], activate_last=False)

    def logits(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        """Log-odds of a click before the sigmoid, fp32 `[B]`.

        Args:
            history: fp32 `[B, L, W]`, right-padded.
            history_lengths: int64 `[B]`.
            embeddings: fp32 `[B, sum of feature_dims]`, the pooled features concatenated.
        """
        # Zeros add nothing to the weighted sum: the weights need no mask.
        steps = without_padding(history, history_lengths)
        weights = self.attention(steps, embeddings[:, : self.dim])
        interest = (weights.unsqueeze(1) @ steps).squeeze(1)  # [B, W]
        top: Tensor = self.top(torch.cat([interest, embeddings], dim=1))  # [B, 1]
        return top.squeeze(1)

    def forward(self, history: Tensor, history_lengths: Tensor, embeddings: Tensor) -> Tensor:
        """Probability of a click, fp32 `[B]`; arguments of `logits`."""
        return torch.sigmoid(self.logits(history, history_lengths, embeddings))
