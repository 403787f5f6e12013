"""A TorchRec collection with weighted ids under two heads: a probability and a logit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, mse_loss

from kernels.row_format import RowFormat
from sharded_infer import DenseSpec, ModelSpec, ShardedInferError, TableSpec, TowerSpec
from tests.end_to_end.whole_model import TOLERANCES, WholeModel, check_served, stored_as, train
from tests.support.servers import Command

torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed; see the bench extra")

ROWS, DIM = 140, 8
TABLES = {"t_watched": ("watched", "liked"), "t_author": ("author",), "t_topic": ("topic",)}
FEATURES = tuple(name for features in TABLES.values() for name in features)


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
        self.ebc = torchrec.EmbeddingBagCollection(
            is_weighted=True,
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=name,
                    num_embeddings=ROWS,
                    embedding_dim=DIM,
                    feature_names=list(features),
                    pooling=torchrec.PoolingType.SUM,
                    init_fn=lambda weight: nn.init.normal_(weight, std=0.05),
                )
                for name, features in TABLES.items()
            ],
        )
        self.heads = TwoHeads()

    def forward(self, dense: Tensor, sparse: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.heads(dense, self.ebc(sparse).values())
        return found


SPEC = ModelSpec(
    name="watching",
    tables=tuple(TableSpec(name, ROWS, DIM, features=names) for name, names in TABLES.items()),
    dense=DenseSpec({"dense": 2}),
    tower=TowerSpec(outputs=("click", "seconds")),
)


def arguments(rows: pd.DataFrame) -> tuple[Any, ...]:
    lengths = np.concatenate([rows[name].map(len) for name in FEATURES])
    sparse = torchrec.KeyedJaggedTensor(
        keys=list(FEATURES),
        values=torch.tensor(
            np.concatenate([i for name in FEATURES for i in rows[name]]), dtype=torch.int64
        ),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        weights=torch.tensor(
            np.concatenate([w for name in FEATURES for w in rows[f"{name}.weights"]]),
            dtype=torch.float32,
        ),
    )
    return torch.tensor(np.array(rows["dense"].tolist(), np.float32)), sparse


@pytest.fixture(scope="module")
def watching() -> WholeModel:
    generator = np.random.default_rng(3)
    columns: dict[str, Any] = {}
    for name in FEATURES:
        sizes = generator.integers(0, 5, 400)
        columns[name] = [generator.integers(0, ROWS, size) for size in sizes]
        columns[f"{name}.weights"] = [generator.random(size).astype(np.float32) for size in sizes]
    columns["dense"] = list(generator.random((400, 2)).astype(np.float32))
    frame = pd.DataFrame({**columns, "label.click": generator.integers(0, 2, 400)})
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
def test_modules_score_as_the_model_does(
    watching: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    watching.publish_modules(stored_as(SPEC, row_format), tmp_path / "models")
    check_served(watching, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_files_score_as_the_model_does(
    watching: WholeModel, row_format: RowFormat, tmp_path: Path, sharded_infer: Command
) -> None:
    done = watching.publish_files(stored_as(SPEC, row_format), tmp_path, sharded_infer)
    assert done.code == 0, done.err
    check_served(watching, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


def with_features(**features: tuple[str, ...]) -> ModelSpec:
    """The description with other features of some tables."""
    tables = (replace(t, features=features.get(t.name, t.features)) for t in SPEC.tables)
    return replace(SPEC, tables=tuple(tables))


MISTAKES = {
    "features in each other's table": (
        with_features(t_author=("topic",), t_topic=("author",)),
        "table 't_author': .*author",
    ),
    "a mean for the sum": (
        replace(SPEC, tables=(replace(SPEC.tables[0], pooling="mean"), *SPEC.tables[1:])),
        "table 't_watched': .*mean",
    ),
    "another output": (replace(SPEC, tower=TowerSpec(outputs=("click", "minutes"))), "minutes"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_modules(
    watching: WholeModel, mistake: str, tmp_path: Path
) -> None:
    spec, words = MISTAKES[mistake]
    with pytest.raises(ShardedInferError, match=words):
        watching.publish_modules(spec, tmp_path / "models")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_files(
    watching: WholeModel, mistake: str, tmp_path: Path, sharded_infer: Command
) -> None:
    done = watching.publish_files(MISTAKES[mistake][0], tmp_path, sharded_infer)
    assert done.code == 1, done
    assert ("reference.seconds" if "output" in mistake else "recorded scores") in done.err, done.err
    assert not list((tmp_path / "models").glob("watching/[0-9]*"))


def test_outputs_in_another_order_are_the_same_by_name(
    watching: WholeModel, tmp_path: Path, sharded_infer: Command
) -> None:
    spec = replace(stored_as(SPEC, RowFormat.INT8), tower=TowerSpec(outputs=("seconds", "click")))
    done = watching.publish_files(spec, tmp_path, sharded_infer)
    assert done.code == 0, done.err
    check_served(watching, tmp_path / "models", tmp_path / "log", TOLERANCES[RowFormat.INT8])
