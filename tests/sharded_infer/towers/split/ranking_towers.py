import torch
from torch import Tensor, nn

from sharded_infer.zoo.dcnv2 import DCNv2
from sharded_infer.zoo.dlrm import DLRM

FEATURES, DIM, DENSE = 6, 32, 5
WIDTH = FEATURES * DIM


class TwoTower(nn.Module):
    """The first three features are the user's; scores are dot products."""

    def __init__(self) -> None:
        super().__init__()
        half = WIDTH // 2
        self.user = nn.Sequential(nn.Linear(half, 256), nn.ReLU(), nn.Linear(256, 32))
        self.item = nn.Sequential(nn.Linear(half + DENSE, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        user, item = embeddings.split(WIDTH // 2, dim=1)
        user = nn.functional.normalize(self.user(user), dim=1)
        item = nn.functional.normalize(self.item(torch.cat([item, dense], dim=1)), dim=1)
        return torch.sigmoid(5 * (user * item).sum(1))


class DeepFM(nn.Module):
    """Guo et al. 2017 (arXiv:1703.04247); the first number of each vector is the linear term."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(
            nn.Linear(WIDTH + DENSE, 1024), nn.ReLU(), nn.Linear(1024, 64), nn.ReLU()
        )
        self.last = nn.Linear(64, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        vectors = embeddings.view(-1, FEATURES, DIM)
        first_order = vectors[:, :, 0].sum(1)
        total, squares = vectors.sum(1), (vectors * vectors).sum(1)
        pairs = 0.5 * (total * total - squares).sum(1)
        deep = self.last(self.deep(torch.cat([dense, embeddings], dim=1))).squeeze(1)
        return torch.sigmoid(first_order + pairs + deep)


class Gated(nn.Module):
    """Means, slices of a few columns, a softmax and a norm, among them operators without a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(WIDTH, FEATURES), nn.LayerNorm(DIM)
        self.middle, self.last = nn.Linear(WIDTH + DIM, 64), nn.Linear(64 + 10, 2)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        vectors = embeddings.reshape(embeddings.shape[0], FEATURES, DIM)
        weights = torch.softmax(self.gate(embeddings), dim=1)
        mixed = self.norm(torch.bmm(weights.unsqueeze(1), vectors).squeeze(1))
        middle = self.middle(torch.cat([vectors.mean(1) + mixed, embeddings.tanh()], dim=1))
        few = embeddings[:, DIM - 3 : DIM + 2]
        return torch.sigmoid(self.last(torch.cat([torch.relu(middle), few, dense], dim=1)))


def dcnv2() -> nn.Module:
    return DCNv2(
        dense_width=DENSE,
        feature_dims=[DIM] * FEATURES,
        bottom=[64, 64],
        top=[64, 64, 1],
        cross_layers=2,
        cross_rank=64,
    )


def dlrm() -> nn.Module:
    return DLRM(dense_width=DENSE, feature_dims=[DIM] * FEATURES, bottom=[64, DIM], top=[64, 64, 1])
