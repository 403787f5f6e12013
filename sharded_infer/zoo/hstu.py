"""HSTU: the user's history through gated layers of pointwise attention, then an MLP."""

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
    time_buckets,
    without_padding,
)
from sharded_infer.zoo.mlp import MLP

_EPSILON = 1e-6  # of the released code's norms


class RelativeBias(nn.Module):
    """Attention bias of each pair of steps, by their distance in order and in time."""

    def __init__(self, max_length: int, buckets: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(max_length))
        self.times = nn.Parameter(torch.zeros(buckets))

    def forward(self, age: Tensor) -> Tensor:
        """Float `[B, L, L]`: of step `[:, t]` to the earlier step `[:, :, s]`; `age` `[B, L]`."""
        order = torch.arange(age.shape[1], device=age.device)
        distances = (order.unsqueeze(1) - order).clamp(0, self.positions.numel() - 1)  # [L, L]
        spans = age.unsqueeze(1) - age.unsqueeze(2)  # [B, L, L]
        return self.positions[distances] + self.times[time_buckets(spans, self.times.numel())]


class HSTULayer(nn.Module):
    """`x + f_2(LayerNorm(A(x) V(x)) * U(x))`, with `U, V, Q, K = SiLU(f_1(LayerNorm(x)))`.

    Equations 1 to 3 of Zhai et al. 2024. `A = SiLU(Q K^T + bias) / max_length` is not normalised
    over the steps, and 0 for later steps.
    """

    def __init__(self, dim: int, heads: int, max_length: int) -> None:
        super().__init__()
        self.heads = heads
        self.max_length = max_length
        self.norm = nn.LayerNorm(dim, eps=_EPSILON)
        self.inputs = nn.Linear(dim, 4 * dim)
        self.attended_norm = nn.LayerNorm(dim, eps=_EPSILON)
        self.output = nn.Linear(dim, dim)

    def forward(self, steps: Tensor, bias: Tensor, later: Tensor) -> Tensor:
        """Maps float `[B, L, dim]` to the same, with a bias of float `[B, L, L]`.

        `later` is bool `[L, L]`, true where the second step comes after the first.
        """
        inputs = nn.functional.silu(self.inputs(self.norm(steps)))
        gates, *parts = inputs.chunk(4, dim=2)
        values, queries, keys = (split_heads(part, self.heads) for part in parts)
        scores = queries @ keys.transpose(2, 3) + bias.unsqueeze(1)  # [B, heads, L, L]
        weights = nn.functional.silu(scores).masked_fill(later, 0.0) / self.max_length
        attended = (weights @ values).transpose(1, 2).flatten(2)
        gated: Tensor = self.output(self.attended_norm(attended) * gates)
        return steps + gated


class HSTU(nn.Module):
    """A small HSTU of Zhai et al. 2024, "Actions Speak Louder than Words" (arXiv:2402.17152).

    The history is encoded once for all candidates. An item and its action are one step, not two.
    Right padding is behind the last step, where causal attention does not see it.

    Args:
        feature_dims: embedding width of each pooled feature; the first is the candidate.
        history: its first member is of the candidate's table; a linear layer maps its steps to the
            candidate's dim. It has the dense companion `age`.
        layers: number of HSTU layers.
        heads: of each layer.
        time_buckets: number of biases by time.
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
        layers: int,
        heads: int,
        time_buckets: int,
        top: Sequence[int],
    ) -> None:
        super().__init__()
        self.dim = candidate_dim("HSTU", feature_dims, history)
        check_counts("HSTU", {"layers": layers, "time_buckets": time_buckets})
        check_heads("HSTU", self.dim, heads)
        if not top or top[-1] != 1:
            raise SpecError(f"an HSTU's top layers must end with 1, got {list(top)}")
        self.steps = nn.Linear(history.width, self.dim)
        self.bias = RelativeBias(history.max_length, time_buckets)
        self.layers = nn.ModuleList(
            HSTULayer(self.dim, heads, history.max_length) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(self.dim, eps=_EPSILON)
        self.top = MLP([2 * self.dim + sum(feature_dims), *top], activate_last=False)

    def user(self, history: Tensor, history_lengths: Tensor, age: Tensor) -> Tensor:
        """The user's vector, fp32 `[B, D]`; arguments of `logits`."""
        steps = self.steps(without_padding(history, history_lengths))
        bias = self.bias(age.squeeze(2))
        order = torch.arange(steps.shape[1], device=steps.device)
        later = order > order.unsqueeze(1)
        for layer in self.layers:
            steps = layer(steps, bias, later)
        user: Tensor = self.norm(last_steps(steps, history_lengths))
        return user

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
        user = self.user(history, history_lengths, age)
        product = user * embeddings[:, : self.dim]
        top: Tensor = self.top(torch.cat([user, embeddings, product], dim=1))  # [B, 1]
        return top.squeeze(1)

    def forward(
        self, history: Tensor, history_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        """Probability of a click, fp32 `[B]`; arguments of `logits`."""
        return torch.sigmoid(self.logits(history, history_lengths, age, embeddings))
