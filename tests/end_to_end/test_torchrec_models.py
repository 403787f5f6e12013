"""TorchRec's collection with weighted ids under two heads, published in both ways and served."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, mse_loss

from kernels.row_format import RowFormat
from sharded_infer import DenseSpec, ModelSpec, TableSpec, TowerSpec
from tests.end_to_end.whole_model import TOLERANCES, WholeModel, check_served, stored_as, train

torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed; see the bench extra")

DIM, SAMPLES = 8, 400
FEATURES = {"t_watched": ("watched", "liked"), "t_author": ("author",), "t_topic": ("topic",)}
ROWS = dict.fromkeys(FEATURES, 140)
NAMES = [name for names in FEATURES.values() for name in names]


def arguments(rows: pd.DataFrame) -> tuple[Tensor, Any]:
    """Dense inputs, and the features' ids with their weights."""

    def flat(suffix: str = "") -> Tensor:
        return torch.tensor(np.concatenate([one for n in NAMES for one in rows[n + suffix]]))

    lengths = np.concatenate([rows[name].map(len) for name in NAMES])
    sparse = torchrec.KeyedJaggedTensor(
        keys=NAMES,
        values=flat(),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        weights=flat(".weights"),
    )
    return torch.tensor(np.array(rows["dense"].tolist(), np.float32)), sparse


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(2 + 4 * DIM, 24), nn.ReLU())
        self.click = nn.Linear(24, 1)
        self.seconds = nn.Linear(24, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        hidden = self.shared(torch.cat([dense, embeddings], dim=1))
        click = torch.sigmoid(self.click(hidden)).squeeze(1)
        return {"click": click, "seconds": self.seconds(hidden).squeeze(1)}


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        configs = [
            torchrec.EmbeddingBagConfig(
                name=name,
                num_embeddings=count,
                embedding_dim=DIM,
                feature_names=list(FEATURES[name]),
                init_fn=lambda weight: nn.init.normal_(weight, std=0.05),
            )
            for name, count in ROWS.items()
        ]
        self.ebc = torchrec.EmbeddingBagCollection(tables=configs, is_weighted=True)
        self.heads = TwoHeads()

    def forward(self, dense: Tensor, sparse: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.heads(dense, self.ebc(sparse).values())
        return found


SPEC = ModelSpec(
    name="watching",
    tables=tuple(
        TableSpec(name, ROWS[name], DIM, features=names) for name, names in FEATURES.items()
    ),
    dense=DenseSpec({"dense": 2}),
    tower=TowerSpec(outputs=("click", "seconds")),
)


@pytest.fixture(scope="module")
def watching() -> WholeModel:
    generator = np.random.default_rng(3)
    columns: dict[str, Any] = {}
    for name in NAMES:
        sizes = generator.integers(0, 5, SAMPLES)
        columns[name] = [generator.integers(0, 140, size) for size in sizes]
        columns[f"{name}.weights"] = [generator.random(size).astype(np.float32) for size in sizes]
    columns["dense"] = list(generator.random((SAMPLES, 2)).astype(np.float32))
    frame = pd.DataFrame({**columns, "label.click": generator.integers(0, 2, SAMPLES)})
    torch.manual_seed(3)
    model = Ranker()
    clicked = torch.tensor(frame["label.click"].to_numpy(np.float32))

    def loss(found: dict[str, Tensor]) -> Tensor:
        return binary_cross_entropy(found["click"], clicked) + mse_loss(
            found["seconds"], 3 * clicked
        )

    train(model, loss, *arguments(frame))
    return WholeModel(model, arguments, frame, SPEC, model.ebc, model.heads)


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_a_weighted_collection_under_two_heads_scores_as_it_does(
    watching: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    watching.publish_modules(stored_as(SPEC, row_format), tmp_path / "models")
    check_served(watching, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])
