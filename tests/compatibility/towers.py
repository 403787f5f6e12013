"""Towers of the corpus. Only what release 0.1.0 had is used here, since it runs this file too."""

import torch
from torch import Tensor, nn

OUTPUTS = ("score", "pooled")


class ExactTower(nn.Module):
    """A tower whose products are sums of few bits, so that their order does not change a bit.

    The inputs are rounded to sixteenths below 8, which bf16 and fp16 hold too. The weights are
    quarters. fp32 then holds every sum of a layer, and a processor may add it in any order.
    """

    def __init__(self, width: int, hidden: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(
            [nn.Linear(width, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)]
        )
        for layer in self.layers:
            for parameter in layer.parameters():
                drawn = torch.randint(-3, 4, parameter.shape, generator=generator)
                parameter.data = drawn.to(torch.float32) / 4

    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        """The score `[B]`, and the pooled embeddings `[B, width]` as they come."""
        first, second, last = self.layers
        found = torch.cat([dense, embeddings], dim=1)
        hidden = torch.relu(first(_to_sixteenths(found)))
        hidden = torch.relu(second(_to_sixteenths(hidden / 4)))
        score = last(_to_sixteenths(hidden / 4))
        return {"score": score.squeeze(1), "pooled": embeddings + 0.0}


class ManyOperators(nn.Module):
    """Layers of many kinds: recurrent, attention, convolution, normalisation, activations."""

    def __init__(self, dense: int, dims: tuple[int, int], seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.dims = dims
            self.recurrent = nn.GRU(4, 6, batch_first=True)
            self.norm = nn.LayerNorm(sum(dims))
            self.query, self.key = nn.Linear(4, 5), nn.Linear(4, 5)
            self.convolution = nn.Conv1d(4, 3, 2)
            self.gate = nn.Linear(dense, 6)
            self.last = nn.Linear(6 + 3 + dims[0], 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """The score `[B]`, of tables whose dims are multiples of 4."""
        normal = self.norm(embeddings)
        steps = normal.unflatten(1, (sum(self.dims) // 4, 4))
        weights = torch.softmax(self.query(steps) @ self.key(steps).transpose(1, 2), dim=-1)
        mixed = weights @ steps
        _, state = self.recurrent(mixed)
        gated = state[-1] * torch.sigmoid(self.gate(torch.log1p(dense.abs())))
        found = nn.functional.gelu(self.convolution(mixed.transpose(1, 2))).amax(dim=2)
        first = embeddings[:, : self.dims[0]].clamp(-1, 1)
        score = self.last(torch.cat([gated, found, first], dim=1))
        return torch.tanh(score).squeeze(1)


def _to_sixteenths(values: Tensor) -> Tensor:
    return torch.round(values.clamp(-7.9, 7.9) * 16) / 16
