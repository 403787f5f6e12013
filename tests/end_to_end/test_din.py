"""DIN by features of one id: the candidate and the last items, all in one table, none is id 0."""

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

ITEMS, USERS, DIM, LENGTH = 150, 90, 8, 5
HISTORY = tuple(f"hist_{place}" for place in range(LENGTH))


class Attention(nn.Module):
    """The activation unit of https://arxiv.org/abs/1706.06978, weights not normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = nn.Sequential(nn.Linear(4 * DIM, 16), nn.PReLU(), nn.Linear(16, 1))

    def forward(self, item: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        items = item.unsqueeze(1).expand_as(history)
        crossed = torch.cat([items, history, items - history, items * history], dim=2)
        weights = self.unit(crossed).squeeze(2) * mask
        return torch.bmm(weights.unsqueeze(1), history).squeeze(1)


class DIN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS + 1, DIM, padding_idx=0)
        self.user = nn.Embedding(USERS, DIM)
        for table in (self.item, self.user):
            nn.init.normal_(table.weight, std=0.05)
        with torch.no_grad():
            self.item.weight[0] = 0
        self.attention = Attention()
        self.score = nn.Sequential(nn.Linear(3 * DIM, 32), nn.PReLU(), nn.Linear(32, 1))

    def forward(self, user: Tensor, item: Tensor, history: Tensor) -> Tensor:
        target, mask = self.item(item), (history != 0).float()
        interest = self.attention(target, self.item(history), mask)
        score: Tensor = self.score(torch.cat([self.user(user), target, interest], dim=1))
        return torch.sigmoid(score).squeeze(1)


class DINTower(nn.Module):
    """The same behind the tables; which items there are is a dense input."""

    def __init__(self, model: DIN) -> None:
        super().__init__()
        self.attention, self.score = model.attention, model.score

    def forward(self, mask: Tensor, embeddings: Tensor) -> Tensor:
        user, target, history = embeddings.split([DIM, DIM, LENGTH * DIM], dim=1)
        interest = self.attention(target, history.unflatten(1, (LENGTH, DIM)), mask)
        score: Tensor = self.score(torch.cat([user, target, interest], dim=1))
        return torch.sigmoid(score).squeeze(1)


SPEC = ModelSpec(
    name="din",
    tables=(
        TableSpec("user", USERS, DIM, required=True),
        TableSpec("item", ITEMS + 1, DIM, features=("item", *HISTORY), padding_idx=0),
    ),
    dense=DenseSpec({"mask": LENGTH}),
)


def arguments(rows: pd.DataFrame) -> tuple[Any, ...]:
    history = torch.tensor(rows[list(HISTORY)].to_numpy())
    return torch.tensor(rows["user"].to_numpy()), torch.tensor(rows["item"].to_numpy()), history


@pytest.fixture(scope="module")
def din() -> WholeModel:
    generator = np.random.default_rng(2)
    history = generator.integers(1, ITEMS + 1, (600, LENGTH))
    history[np.arange(LENGTH) >= generator.integers(0, LENGTH + 1, 600)[:, None]] = 0
    frame = pd.DataFrame(
        {
            "user": generator.integers(0, USERS, 600),
            "item": generator.integers(1, ITEMS + 1, 600),
            **{name: history[:, place] for place, name in enumerate(HISTORY)},
            "mask": list((history != 0).astype(np.float32)),
            "label": generator.integers(0, 2, 600),
        }
    )
    torch.manual_seed(2)
    model = DIN()
    wanted = torch.tensor(frame["label"].to_numpy(np.float32))
    train(model, lambda scores: binary_cross_entropy(scores, wanted), *arguments(frame))
    return WholeModel(model, arguments, frame, SPEC, model, DINTower(model))


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_modules_score_as_the_model_does(
    din: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    din.publish_modules(stored_as(SPEC, row_format), tmp_path / "models")
    check_served(din, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_files_score_as_the_model_does(
    din: WholeModel, row_format: RowFormat, tmp_path: Path, sharded_infer: Command
) -> None:
    done = din.publish_files(stored_as(SPEC, row_format), tmp_path, sharded_infer)
    assert done.code == 0, done.err
    check_served(din, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


def items(*features: str) -> ModelSpec:
    """The description with other features of the items' table."""
    return replace(SPEC, tables=(SPEC.tables[0], replace(SPEC.tables[1], features=features)))


MISTAKES = {
    "the candidate behind the history": (items(*HISTORY, "item"), "recorded scores"),
    "the history in another order": (items("item", *HISTORY[::-1]), "recorded scores"),
    "a mask of another width": (replace(SPEC, dense=DenseSpec({"mask": 1})), "mask"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_modules(din: WholeModel, mistake: str, tmp_path: Path) -> None:
    spec, words = MISTAKES[mistake]
    with pytest.raises(ShardedInferError, match=words):
        din.publish_modules(spec, tmp_path / "models", recorded=True)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_files(
    din: WholeModel, mistake: str, tmp_path: Path, sharded_infer: Command
) -> None:
    spec, words = MISTAKES[mistake]
    done = din.publish_files(spec, tmp_path, sharded_infer)
    assert done.code == 1 and words in done.err, done
    assert not list((tmp_path / "models").glob("din/[0-9]*"))
