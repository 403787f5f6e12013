"""TorchRec's models, served: its own DLRM, and a collection with weighted ids under two heads."""

from collections.abc import Sequence
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
from sharded_infer import (
    DenseSpec,
    ModelSpec,
    TableSpec,
    TowerSpec,
    from_torchrec,
)
from tests.end_to_end.whole_model import TOLERANCES, WholeModel, check_served, stored_as, train
from tests.support.servers import Command

torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed; see the bench extra")
models = pytest.importorskip("torchrec.models.dlrm")

DIM, SAMPLES = 8, 400
Features = dict[str, tuple[str, ...]]


def collection_of(
    rows: dict[str, int], features: Features, *, is_weighted: bool = False
) -> nn.Module:
    module: nn.Module = torchrec.EmbeddingBagCollection(
        is_weighted=is_weighted,
        tables=[
            torchrec.EmbeddingBagConfig(
                name=name,
                num_embeddings=count,
                embedding_dim=DIM,
                feature_names=list(features[name]),
                init_fn=lambda weight: nn.init.normal_(weight, std=0.05),
            )
            for name, count in rows.items()
        ],
    )
    return module


def arguments(rows: pd.DataFrame, names: Sequence[str]) -> tuple[Tensor, Any]:
    """Dense inputs, and the features' ids with the weights that there are."""

    def flat(columns: Sequence[str]) -> Tensor:
        return torch.tensor(np.concatenate([one for name in columns for one in rows[name]]))

    weights = [f"{name}.weights" for name in names]
    sparse = torchrec.KeyedJaggedTensor(
        keys=list(names),
        values=flat(names),
        lengths=torch.tensor(
            np.concatenate([rows[name].map(len) for name in names]), dtype=torch.int32
        ),
        weights=flat(weights) if weights[0] in rows else None,
    )
    return torch.tensor(np.array(rows["dense"].tolist(), np.float32)), sparse


# ---------------------------------------------------------------- DLRM

DLRM_ROWS = {"t_user": 120, "t_item": 90, "t_ad": 90}
DLRM_FEATURES = {"t_user": ("user",), "t_item": ("item", "seen"), "t_ad": ("ad",)}
DLRM_NAMES = [name for names in DLRM_FEATURES.values() for name in names]


class Probability(nn.Module):
    """The model as it is asked: the sigmoid of its logit."""

    def __init__(self, dlrm: nn.Module) -> None:
        super().__init__()
        self.dlrm = dlrm

    def forward(self, dense: Tensor, sparse: Any) -> Tensor:
        return torch.sigmoid(self.dlrm(dense, sparse)).squeeze(1)


@pytest.fixture(scope="module")
def dlrm() -> WholeModel:
    torch.manual_seed(4)
    collection = collection_of(DLRM_ROWS, DLRM_FEATURES)
    model = Probability(models.DLRM(collection, 4, [16, DIM], [16, 1]))
    generator = np.random.default_rng(4)
    ids = {
        name: [generator.integers(0, rows, generator.integers(1, 4)) for _ in range(SAMPLES)]
        for table, rows in DLRM_ROWS.items()
        for name in DLRM_FEATURES[table]
    }
    dense = list(generator.random((SAMPLES, 4)).astype(np.float32))
    frame = pd.DataFrame({**ids, "dense": dense, "label": generator.integers(0, 2, SAMPLES)})
    wanted = torch.tensor(frame["label"].to_numpy(np.float32))

    def given(rows: pd.DataFrame) -> tuple[Any, ...]:
        return arguments(rows, DLRM_NAMES)

    train(model, lambda scores: binary_cross_entropy(scores, wanted), *given(frame))
    spec, weights, tower = from_torchrec(model.dlrm, "clicks")
    return WholeModel(model, given, frame, spec, weights, tower)


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_a_dlrm_that_is_taken_over_whole_scores_as_it_does(
    dlrm: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    dlrm.publish_modules(stored_as(dlrm.spec, row_format), tmp_path / "models")
    check_served(dlrm, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


# ---------------------------------------------------------------- weighted ids under two heads

FEATURES = {"t_watched": ("watched", "liked"), "t_author": ("author",), "t_topic": ("topic",)}
ROWS = dict.fromkeys(FEATURES, 140)
NAMES = [name for names in FEATURES.values() for name in names]


class TwoHeads(nn.Module):
    """A probability and a logit."""

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
        self.ebc = collection_of(ROWS, FEATURES, is_weighted=True)
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

    def given(rows: pd.DataFrame) -> tuple[Any, ...]:
        return arguments(rows, NAMES)

    train(model, loss, *given(frame))
    return WholeModel(model, given, frame, SPEC, model.ebc, model.heads)


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_a_weighted_collection_under_two_heads_scores_as_it_does(
    watching: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    watching.publish_modules(stored_as(SPEC, row_format), tmp_path / "models")
    check_served(watching, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


@pytest.mark.parametrize(
    ("row_format", "outputs"),
    [(RowFormat.FP32, ("click", "seconds")), (RowFormat.INT8, ("seconds", "click"))],
)
def test_its_files_score_as_it_does_with_outputs_in_either_order(
    watching: WholeModel,
    row_format: RowFormat,
    outputs: tuple[str, ...],
    tmp_path: Path,
    sharded_infer: Command,
) -> None:
    spec = replace(stored_as(SPEC, row_format), tower=TowerSpec(outputs=outputs))
    done = watching.publish_files(spec, tmp_path, sharded_infer)
    assert done.code == 0, done.err
    check_served(watching, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])
