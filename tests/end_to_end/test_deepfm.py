"""DeepFM on clicks like Criteo's: every field looks up a weight and a vector with the same id."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from kernels.row_format import RowFormat
from sharded_infer import DenseSpec, ModelSpec, ShardedInferError, TableSpec
from tests.end_to_end.training import train
from tests.end_to_end.whole_model import TOLERANCES, WholeModel, check_served, stored_as
from tests.support.servers import Command

# Two fields have as many ids: their tables are easily taken for each other.
FIELDS = {"C1": 120, "C2": 80, "C3": 120, "C4": 30}
DENSE, DIM = ("I1", "I2", "I3"), 8


class DeepFM(nn.Module):
    """https://arxiv.org/abs/1703.04247"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleDict({name: nn.Embedding(ids, 1) for name, ids in FIELDS.items()})
        self.fm = nn.ModuleDict({name: nn.Embedding(ids, DIM) for name, ids in FIELDS.items()})
        for table in (*self.linear.values(), *self.fm.values()):
            nn.init.normal_(table.weight, std=0.01)
        self.dense = nn.Linear(len(DENSE), 1)
        self.deep = nn.Sequential(
            nn.Linear(len(DENSE) + DIM * len(FIELDS), 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        ids = dict(zip(FIELDS, categories.unbind(1), strict=True))
        linear = torch.cat([self.linear[name](ids[name]) for name in FIELDS], dim=1)
        vectors = torch.stack([self.fm[name](ids[name]) for name in FIELDS], dim=1)
        return self.head(linear, vectors, numbers)

    def head(self, linear: Tensor, vectors: Tensor, numbers: Tensor) -> Tensor:
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
        deep = self.deep(torch.cat([numbers, vectors.flatten(1)], dim=1))
        logit = linear.sum(1, keepdim=True) + self.dense(numbers) + pairs + deep
        return torch.sigmoid(logit).squeeze(1)


class DeepFMTower(nn.Module):
    """The same behind the tables."""

    def __init__(self, model: DeepFM) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"dense": model.dense, "deep": model.deep})

    def forward(self, I1: Tensor, I2: Tensor, I3: Tensor, embeddings: Tensor) -> Tensor:  # noqa: N803
        linear, vectors = embeddings.split([len(FIELDS), DIM * len(FIELDS)], dim=1)
        numbers = torch.cat([I1, I2, I3], dim=1)
        stacked = vectors.unflatten(1, (len(FIELDS), DIM))
        pairs = 0.5 * (stacked.sum(1).square() - stacked.square().sum(1)).sum(1, keepdim=True)
        deep = self.model["deep"](torch.cat([numbers, vectors], dim=1))
        logit = linear.sum(1, keepdim=True) + self.model["dense"](numbers) + pairs + deep
        return torch.sigmoid(logit).squeeze(1)


SPEC = ModelSpec(
    name="deepfm",
    tables=(
        *(
            TableSpec(f"linear_{name}", ids, 1, features=(name,), weights=f"linear.{name}.weight")
            for name, ids in FIELDS.items()
        ),
        *(
            TableSpec(f"fm_{name}", ids, DIM, features=(name,), weights=f"fm.{name}.weight")
            for name, ids in FIELDS.items()
        ),
    ),
    dense=DenseSpec(dict.fromkeys(DENSE, 1)),
)


def arguments(rows: pd.DataFrame) -> tuple[Any, ...]:
    ids = torch.tensor(rows[list(FIELDS)].to_numpy())
    return ids, torch.tensor(rows[list(DENSE)].to_numpy(np.float32))


@pytest.fixture(scope="module")
def deepfm() -> WholeModel:
    generator = np.random.default_rng(1)
    columns: dict[str, Any] = {name: generator.zipf(1.3, 600) % ids for name, ids in FIELDS.items()}
    columns |= {name: generator.random(600).astype(np.float32) for name in DENSE}
    frame = pd.DataFrame({**columns, "label": generator.integers(0, 2, 600)})
    torch.manual_seed(1)
    model = DeepFM()
    wanted = torch.tensor(frame["label"].to_numpy(np.float32))
    train(model, lambda scores: binary_cross_entropy(scores, wanted), *arguments(frame))
    # The whole model: its tables are found in it.
    return WholeModel(model, arguments, frame, SPEC, model, DeepFMTower(model))


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_modules_score_as_the_model_does(
    deepfm: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    deepfm.publish_modules(stored_as(SPEC, row_format), tmp_path / "models")
    check_served(deepfm, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_files_score_as_the_model_does(
    deepfm: WholeModel, row_format: RowFormat, tmp_path: Path, sharded_infer: Command
) -> None:
    done = deepfm.publish_files(stored_as(SPEC, row_format), tmp_path, sharded_infer)
    assert done.code == 0, done.err
    check_served(deepfm, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


def changed(**by_table: dict[str, Any]) -> ModelSpec:
    """The description with fields of some tables changed."""
    tables = tuple(replace(t, **by_table.get(t.name, {})) for t in SPEC.tables)
    return replace(SPEC, tables=tables)


def swapped(one: str, other: str) -> ModelSpec:
    """The description with two tables in each other's place."""
    tables = {table.name: table for table in SPEC.tables}
    order = [other if n == one else one if n == other else n for n in tables]
    return replace(SPEC, tables=tuple(tables[name] for name in order))


MISTAKES = {
    "fields in each other's table": changed(
        fm_C1={"features": ("C3",)}, fm_C3={"features": ("C1",)}
    ),
    "tables in another order": swapped("fm_C2", "fm_C4"),
    "a dense input left out": replace(SPEC, dense=DenseSpec({"I1": 1, "I2": 1})),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_modules(
    deepfm: WholeModel, mistake: str, tmp_path: Path
) -> None:
    words = "I3" if "dense" in mistake else "recorded scores"
    with pytest.raises(ShardedInferError, match=words):
        deepfm.publish_modules(MISTAKES[mistake], tmp_path / "models", recorded=True)


FILE_MISTAKES = {
    **MISTAKES,
    "weights in each other's table": changed(
        fm_C1={"weights": "fm.C3.weight"}, fm_C3={"weights": "fm.C1.weight"}
    ),
}


@pytest.mark.parametrize("mistake", FILE_MISTAKES)
def test_a_mistake_is_refused_from_files(
    deepfm: WholeModel, mistake: str, tmp_path: Path, sharded_infer: Command
) -> None:
    done = deepfm.publish_files(FILE_MISTAKES[mistake], tmp_path, sharded_infer)
    words = "I3" if "dense" in mistake else "recorded scores"
    assert done.code == 1 and words in done.err, done
    assert not list((tmp_path / "models").glob("deepfm/[0-9]*"))
