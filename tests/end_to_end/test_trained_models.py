"""A model with the tables of DeepFM, DIN and NeuMF, published in both ways and served."""

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
from sharded_infer import DenseSpec, GateSpec, ModelSpec, ShardedInferError, TableSpec
from tests.end_to_end.whole_model import TOLERANCES, WholeModel, check_served, stored_as, train
from tests.support.servers import Command

# Both fields have as many ids: their tables are easily taken for each other.
FIELDS = {"C1": 120, "C2": 120}
ITEMS, USERS, GENRES, PADDED = 150, 90, 18, 4
DIM, LENGTH, SAMPLES = 8, 5, 600
HISTORY = tuple(f"hist_{place}" for place in range(LENGTH))
NUMBERS = ("I1", "I2")
WIDTHS = dict.fromkeys(NUMBERS, 1)


class Head(nn.Module):
    """Everything behind the tables: what is served."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = nn.Sequential(nn.Linear(4 * DIM, 16), nn.PReLU(), nn.Linear(16, 1))
        self.deep = nn.Sequential(
            nn.Linear(len(NUMBERS) + 6 * DIM, 32), nn.PReLU(), nn.Linear(32, 1)
        )

    def forward(self, I1: Tensor, I2: Tensor, mask: Tensor, embeddings: Tensor) -> Tensor:  # noqa: N803
        widths = [1, 1, DIM, DIM, DIM, DIM, LENGTH * DIM, DIM]
        first, second, left, right, user, target, seen, genres = embeddings.split(widths, dim=1)
        interest = self.attention(target, seen.unflatten(1, (LENGTH, DIM)), mask)
        deep = self.deep(torch.cat([I1, I2, left, right, user, target, interest, genres], dim=1))
        logit: Tensor = first + second + (left * right).sum(1, keepdim=True) + deep
        return torch.sigmoid(logit).squeeze(1)

    def attention(self, item: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        """The activation unit of https://arxiv.org/abs/1706.06978, weights not normalised."""
        items = item.unsqueeze(1).expand_as(history)
        crossed = torch.cat([items, history, items - history, items * history], dim=2)
        weights = self.unit(crossed).squeeze(2) * mask
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1)


class Ranker(nn.Module):
    """Each field has a weight and a vector; the candidate and the last items are in one table."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.ModuleDict({name: nn.Embedding(ids, 1) for name, ids in FIELDS.items()})
        self.fm = nn.ModuleDict({name: nn.Embedding(ids, DIM) for name, ids in FIELDS.items()})
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS + 1, DIM, padding_idx=0)
        self.genre = nn.EmbeddingBag(GENRES + 1, DIM, mode="mean", padding_idx=0)
        for table in (*self.linear.values(), *self.fm.values(), self.user, self.item, self.genre):
            nn.init.normal_(table.weight, std=0.1)
        with torch.no_grad():
            self.item.weight[0] = self.genre.weight[0] = 0
        self.head = Head()

    def forward(
        self, fields: Tensor, user: Tensor, items: Tensor, genres: Tensor, numbers: Tensor
    ) -> Tensor:
        ids = dict(zip(FIELDS, fields.unbind(1), strict=True))
        rows = [
            *(self.linear[name](ids[name]) for name in FIELDS),
            *(self.fm[name](ids[name]) for name in FIELDS),
            self.user(user),
            self.item(items).flatten(1),
            self.genre(genres),
        ]
        mask = (items[:, 1:] != 0).float()
        score: Tensor = self.head(*numbers.split(1, dim=1), mask, torch.cat(rows, dim=1))
        return score


SPEC = ModelSpec(
    name="clicks",
    tables=(
        *(
            TableSpec(f"linear_{name}", ids, 1, features=(name,), weights=f"linear.{name}.weight")
            for name, ids in FIELDS.items()
        ),
        *(
            TableSpec(f"fm_{name}", ids, DIM, features=(name,), weights=f"fm.{name}.weight")
            for name, ids in FIELDS.items()
        ),
        TableSpec("user", USERS, DIM, required=True),
        TableSpec("item", ITEMS + 1, DIM, features=("item", *HISTORY), padding_idx=0),
        TableSpec("genre", GENRES + 1, DIM, pooling="mean", features=("genres",), padding_idx=0),
    ),
    dense=DenseSpec({**WIDTHS, "mask": LENGTH}),
    gate=GateSpec(max_auc_drop=0.001),
)


def arguments(rows: pd.DataFrame) -> tuple[Any, ...]:
    ids = (list(FIELDS), "user", ["item", *HISTORY])
    genres = torch.tensor(np.array(rows["genres"].tolist()))
    numbers = torch.tensor(rows[list(NUMBERS)].to_numpy(np.float32))
    return (*(torch.tensor(rows[names].to_numpy()) for names in ids), genres, numbers)


def clicks(generator: np.random.Generator) -> pd.DataFrame:
    """Histories of 0 to 5 items, and 0 to 4 genres of an item, both padded with zeros."""
    history = generator.integers(1, ITEMS + 1, (SAMPLES, LENGTH))
    history[np.arange(LENGTH) >= generator.integers(0, LENGTH + 1, SAMPLES)[:, None]] = 0
    genres = generator.integers(1, GENRES + 1, (SAMPLES, PADDED))
    genres[np.arange(PADDED) >= generator.integers(0, PADDED + 1, SAMPLES)[:, None]] = 0
    return pd.DataFrame(
        {
            **{name: generator.zipf(1.3, SAMPLES) % ids for name, ids in FIELDS.items()},
            "user": generator.integers(0, USERS, SAMPLES),
            "item": generator.integers(1, ITEMS + 1, SAMPLES),
            **{name: history[:, place] for place, name in enumerate(HISTORY)},
            "mask": list((history != 0).astype(np.float32)),
            "genres": list(genres),
            **{name: generator.random(SAMPLES).astype(np.float32) for name in NUMBERS},
            "label": generator.integers(0, 2, SAMPLES),
        }
    )


@pytest.fixture(scope="module")
def trained() -> WholeModel:
    frame = clicks(np.random.default_rng(1))
    torch.manual_seed(1)
    model = Ranker()
    wanted = torch.tensor(frame["label"].to_numpy(np.float32))
    train(model, lambda scores: binary_cross_entropy(scores, wanted), *arguments(frame))
    # The whole model: its tables are found in it.
    return WholeModel(model, arguments, frame, SPEC, model, model.head)


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_modules_score_as_the_model_does(
    trained: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    trained.publish_modules(stored_as(SPEC, row_format), tmp_path / "models")
    check_served(trained, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_files_score_as_the_model_does(
    trained: WholeModel, row_format: RowFormat, tmp_path: Path, sharded_infer: Command
) -> None:
    done = trained.publish_files(stored_as(SPEC, row_format), tmp_path, sharded_infer)
    assert done.code == 0, done.err
    check_served(trained, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


def changed(**by_table: dict[str, Any]) -> ModelSpec:
    tables = tuple(replace(t, **by_table.get(t.name, {})) for t in SPEC.tables)
    return replace(SPEC, tables=tables)


def swapped(one: str, other: str) -> ModelSpec:
    """The description with two tables in each other's place."""
    tables = {table.name: table for table in SPEC.tables}
    order = [other if n == one else one if n == other else n for n in tables]
    return replace(SPEC, tables=tuple(tables[name] for name in order))


# Wrong descriptions.
MISTAKES = {
    "fields in each other's table": changed(
        fm_C1={"features": ("C2",)}, fm_C2={"features": ("C1",)}
    ),
    "tables in another order": swapped("fm_C1", "fm_C2"),
    "a table of one field that another looks up": changed(linear_C1={"features": ("C2",)}),
    "the candidate behind the history": changed(item={"features": (*HISTORY, "item")}),
    "the history in another order": changed(item={"features": ("item", *HISTORY[::-1])}),
    "a dense input left out": replace(SPEC, dense=DenseSpec({"I1": 1, "mask": LENGTH})),
    "a mask of another width": replace(SPEC, dense=DenseSpec({**WIDTHS, "mask": 1})),
    "a sum for the mean": changed(genre={"pooling": "sum"}),
    "another padding": changed(genre={"padding_idx": 1}),
    "padding left out": changed(genre={"padding_idx": None}),
    "weights in each other's table": changed(
        fm_C1={"weights": "fm.C2.weight"}, fm_C2={"weights": "fm.C1.weight"}
    ),
}
# Words of a refusal that names an input; the others are of the recorded scores.
NAMED = {"a dense input left out": "I2", "a mask of another width": "mask"}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_from_files(
    trained: WholeModel, name: str, tmp_path: Path, sharded_infer: Command
) -> None:
    done = trained.publish_files(MISTAKES[name], tmp_path, sharded_infer)
    assert done.code == 1 and NAMED.get(name, "recorded scores") in done.err, done
    assert not list((tmp_path / "models").glob("clicks/[0-9]*"))


def test_a_mistake_is_refused_from_modules(trained: WholeModel, tmp_path: Path) -> None:
    spec = MISTAKES["fields in each other's table"]
    with pytest.raises(ShardedInferError, match="recorded scores"):
        trained.publish_modules(spec, tmp_path / "models", recorded=True)
