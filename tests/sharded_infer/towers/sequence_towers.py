"""Rankers over a history and its ages, of a user's 8 numbers and then 16 of a candidate."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from sharded_infer.specs.sequence_input import SequenceInput

DIM, USER, LONGEST = 16, 8, 12
DENSE = {"user": 3, "item": 2}
WIDTH = USER + DIM
HISTORY = {"history": SequenceInput(DIM, LONGEST, dense={"age": 1})}
FIXED = {"history": SequenceInput(DIM, LONGEST, fixed=True, dense={"age": 1})}


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
    )


def used(history: Tensor, lengths: Tensor) -> Tensor:
    """Positions that are no padding: bool `[B, L]`."""
    return torch.arange(history.shape[1], device=history.device) < lengths[:, None]


def last_of(states: Tensor, lengths: Tensor) -> Tensor:
    index = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states.shape[-1])
    return states.gather(1, index).squeeze(1)


class Ranker(nn.Module):
    def __init__(self, state: int = DIM) -> None:
        super().__init__()
        self.top = mlp(state + WIDTH + 5)

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(
        self,
        user: Tensor,
        item: Tensor,
        history: Tensor,
        history_lengths: Tensor,
        age: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        state = self.state(history, history_lengths, age, embeddings[:, USER:])
        score: Tensor = self.top(torch.cat([state, embeddings, user, item], dim=-1))
        return score.squeeze(-1).sigmoid()


class MeanPooling(Ranker):
    """YouTube's candidate generation (Covington et al. 2016): the mean of the watched items."""

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        mask = used(history, lengths).unsqueeze(-1)
        return (history * mask).sum(1) / lengths.clamp(min=1).unsqueeze(-1)


class DIN(Ranker):
    """Deep Interest Network (Zhou et al. 2018, arXiv:1706.06978)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.Linear(4 * DIM, 36), nn.PReLU(), nn.Linear(36, 1))

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        target = candidate.unsqueeze(1).expand(-1, history.shape[1], -1)
        both = torch.cat([target, history, target - history, target * history], dim=-1)
        weights = self.attention(both).squeeze(-1)
        weights = weights.masked_fill(~used(history, lengths), 0.0)
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1)


class TargetAttention(Ranker):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        # An empty history attends to its first row, which is zeros.
        padding = ~used(history, lengths.clamp(min=1))
        query = candidate.unsqueeze(1)
        found, _ = self.attention(
            query, history, history, key_padding_mask=padding, need_weights=False
        )
        return found.squeeze(1)


class HSTU(Ranker):
    """Hierarchical sequential transduction unit (Zhai et al. 2024, arXiv:2402.17152), one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.project, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(DIM, DIM)
        self.place = nn.Parameter(torch.randn(2 * LONGEST - 1) * 0.1)
        self.time = nn.Embedding(9, 1)

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        length = history.shape[1]
        gate, value, query, key = functional.silu(self.project(self.norm(history))).split(DIM, -1)
        steps = torch.arange(length)
        apart = steps[:, None] - steps[None, :] + LONGEST - 1
        gaps = (age - age.transpose(1, 2)).abs()
        bucket = (torch.log(gaps.clamp(min=1)) / 0.3).floor().long().clamp(0, 8)
        bias = self.place[apart] + self.time(bucket).squeeze(-1)
        weights = functional.silu(torch.einsum("bqd,bkd->bqk", query, key) + bias) / length
        mask = torch.tril(torch.ones(length, length)) * used(history, lengths).unsqueeze(1)
        mixed = self.out_norm(torch.bmm(weights * mask, value)) * gate
        return last_of(self.out(mixed) + history, lengths) * candidate


class Rotary(Ranker):
    """Causal attention of torch with rotary positions (Su et al. 2021), RMS norms and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(DIM)
        self.project, self.gate, self.out = (nn.Linear(DIM, n) for n in (3 * DIM, 32, DIM))
        self.up = nn.Linear(DIM, 32)
        self.down = nn.Linear(32, DIM)
        self.register_buffer("speed", 100.0 ** (-torch.arange(0, 8, 2) / 8), persistent=False)
        self.speed: Tensor

    def turned(self, vectors: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(vectors.shape[2], dtype=torch.float32), self.speed)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        first, second = vectors.chunk(2, dim=-1)
        return vectors * cos + torch.cat([-second, first], dim=-1) * sin

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        batch, length, _ = history.shape
        split = self.project(self.norm(history)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        mixed = functional.scaled_dot_product_attention(
            self.turned(query), self.turned(key), value, is_causal=True
        )
        states = history + self.out(mixed.transpose(1, 2).reshape(batch, length, DIM))
        states = states + self.down(functional.silu(self.gate(states)) * self.up(states))
        return last_of(functional.rms_norm(states, (DIM,)), lengths) * candidate


class Recurrent(Ranker):
    """DIEN's interest layer (Zhou et al. 2019, arXiv:1809.03672): a GRU, then attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weight = nn.GRU(DIM, DIM, batch_first=True), nn.Linear(DIM, DIM)

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        states, _ = self.layer(history)
        logits = torch.einsum("bld,bd->bl", self.weight(states), candidate)
        logits = logits.masked_fill(~used(history, lengths), torch.finfo(logits.dtype).min)
        return torch.einsum("bl,bld->bd", torch.softmax(logits, dim=1), states)


# Of any length; the recurrent one has as many steps as positions, so only a fixed one.
GROWING: dict[str, Callable[[], Ranker]] = {
    "mean": MeanPooling,
    "din": DIN,
    "target attention": TargetAttention,
    "hstu": HSTU,
    "rotary": Rotary,
}
TOWERS = GROWING | {"recurrent": Recurrent}


def sequences_of(name: str) -> dict[str, SequenceInput]:
    return HISTORY if name in GROWING else FIXED


def seeded(name: str) -> Ranker:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return TOWERS[name]().eval().requires_grad_(False)


def inputs_of(batch: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Inputs by name, padded with zeros on the right; one history is empty."""
    generator = torch.Generator().manual_seed(1000 * seed + 31 * batch + length)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    if batch > 2:
        lengths[2] = 0
    mask = (torch.arange(length) < lengths[:, None]).unsqueeze(-1)
    return {
        **{name: torch.randn(batch, width, generator=generator) for name, width in DENSE.items()},
        "history": torch.randn(batch, length, DIM, generator=generator) * mask,
        "history_lengths": lengths,
        "age": torch.rand(batch, length, 1, generator=generator) * 50 * mask,
        "embeddings": torch.randn(batch, WIDTH, generator=generator),
    }
