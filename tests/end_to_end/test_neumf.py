"""NeuMF on ratings like MovieLens's: users and items in two tables, a mean of padded genres."""

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
from sharded_infer import GateSpec, ModelSpec, ShardedInferError, TableSpec
from tests.end_to_end.training import train
from tests.end_to_end.whole_model import TOLERANCES, WholeModel, check_served, stored_as
from tests.support.servers import Command

USERS, ITEMS, GENRES, PADDED = 300, 200, 18, 4


class NeuMF(nn.Module):
    """https://arxiv.org/abs/1708.05031, with the items' genres beside the items."""

    def __init__(self) -> None:
        super().__init__()
        self.gmf_user = nn.Embedding(USERS, 8)
        self.gmf_item = nn.Embedding(ITEMS, 8)
        self.mlp_user = nn.Embedding(USERS, 16)
        self.mlp_item = nn.Embedding(ITEMS, 16)
        self.genre = nn.EmbeddingBag(GENRES + 1, 8, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU())
        self.out = nn.Linear(16, 1)
        for table in (self.gmf_user, self.gmf_item, self.mlp_user, self.mlp_item, self.genre):
            nn.init.normal_(table.weight, std=0.01)
        with torch.no_grad():
            self.genre.weight[0] = 0

    def forward(self, user: Tensor, item: Tensor, genres: Tensor) -> Tensor:
        gmf = self.gmf_user(user) * self.gmf_item(item)
        deep = torch.cat([self.mlp_user(user), self.mlp_item(item), self.genre(genres)], dim=1)
        score: Tensor = self.out(torch.cat([gmf, self.mlp(deep)], dim=1))
        return torch.sigmoid(score).squeeze(1)


class NeuMFTower(nn.Module):
    """The same behind the tables."""

    def __init__(self, model: NeuMF) -> None:
        super().__init__()
        self.mlp, self.out = model.mlp, model.out

    def forward(self, embeddings: Tensor) -> Tensor:
        gmf_user, gmf_item, deep = embeddings.split([8, 8, 40], dim=1)
        score: Tensor = self.out(torch.cat([gmf_user * gmf_item, self.mlp(deep)], dim=1))
        return torch.sigmoid(score).squeeze(1)


SPEC = ModelSpec(
    name="neumf",
    tables=(
        TableSpec("gmf_user", USERS, 8, features=("user",)),
        TableSpec("gmf_item", ITEMS, 8, features=("item",)),
        TableSpec("mlp_user", USERS, 16, features=("user",)),
        TableSpec("mlp_item", ITEMS, 16, features=("item",)),
        TableSpec("genre", GENRES + 1, 8, pooling="mean", features=("genres",), padding_idx=0),
    ),
    gate=GateSpec(max_auc_drop=0.001),
)


def arguments(rows: pd.DataFrame) -> tuple[Any, ...]:
    columns = ("user", "item", "genres")
    return tuple(torch.tensor(np.array(rows[name].tolist())) for name in columns)


@pytest.fixture(scope="module")
def neumf() -> WholeModel:
    generator = np.random.default_rng(0)
    item_genres = np.zeros((ITEMS, PADDED), np.int64)
    for genres in item_genres:
        count = generator.integers(0, PADDED + 1)
        genres[:count] = generator.choice(np.arange(1, GENRES + 1), count, replace=False)
    items = generator.integers(0, ITEMS, 600)
    frame = pd.DataFrame(
        {
            "user": generator.integers(0, USERS, 600),
            "item": items,
            "genres": list(item_genres[items]),
            "label": generator.integers(0, 2, 600),
        }
    )
    torch.manual_seed(0)
    model = NeuMF()
    wanted = torch.tensor(frame["label"].to_numpy(np.float32))
    train(model, lambda scores: binary_cross_entropy(scores, wanted), *arguments(frame))
    tables = {
        name: getattr(model, name) for name in ("gmf_user", "gmf_item", "mlp_user", "mlp_item")
    }
    return WholeModel(
        model, arguments, frame, SPEC, {**tables, "genre": model.genre}, NeuMFTower(model)
    )


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_modules_score_as_the_model_does(
    neumf: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    neumf.publish_modules(stored_as(SPEC, row_format), tmp_path / "models")
    check_served(neumf, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_files_score_as_the_model_does(
    neumf: WholeModel, row_format: RowFormat, tmp_path: Path, sharded_infer: Command
) -> None:
    done = neumf.publish_files(stored_as(SPEC, row_format), tmp_path, sharded_infer)
    assert done.code == 0, done.err
    check_served(neumf, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


def changed(place: int, **fields: Any) -> ModelSpec:
    """The description with fields of one table changed."""
    tables = list(SPEC.tables)
    tables[place] = replace(tables[place], **fields)
    return replace(SPEC, tables=tuple(tables))


MISTAKES = {
    "a sum for the mean": (changed(4, pooling="sum"), "table 'genre': the spec says pooling 'sum'"),
    "another padding": (changed(4, padding_idx=1), "table 'genre': the spec says padding_idx 1"),
    # A table's module does not know whose rows it holds: the recorded scores do.
    "a table of users that items look up": (changed(2, features=("item",)), "recorded scores"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_modules(neumf: WholeModel, mistake: str, tmp_path: Path) -> None:
    spec, words = MISTAKES[mistake]
    with pytest.raises(ShardedInferError, match=words):
        neumf.publish_modules(spec, tmp_path / "models", recorded=True)


@pytest.mark.parametrize(
    "spec",
    [
        *(spec for spec, _ in MISTAKES.values()),
        # Files do not say it.
        pytest.param(changed(4, padding_idx=None), id="padding left out"),
    ],
)
def test_a_mistake_is_refused_from_files(
    neumf: WholeModel, spec: ModelSpec, tmp_path: Path, sharded_infer: Command
) -> None:
    done = neumf.publish_files(spec, tmp_path, sharded_infer)
    assert done.code == 1 and "recorded scores" in done.err, done
    assert not list((tmp_path / "models").glob("neumf/[0-9]*"))
