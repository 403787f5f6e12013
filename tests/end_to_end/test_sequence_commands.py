"""The commands that make a version, with a model that has a sequence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer import Precision, SequenceInput, export_tower, open_model, write_program
from tests.support.servers import Command

ITEMS, ACTIONS, LONGEST = 500, 8, 30
MODEL_TOML = f"""
name = "feed"

[[tables]]
name = "item"
rows = {ITEMS}
dim = 16
features = ["candidate", "seen"]

[[tables]]
name = "action"
rows = {ACTIONS}
dim = 8

[dense]
inputs = {{ price = 1 }}

[sequences.history]
max_length = {LONGEST}
features = ["seen", "action"]
dense = {{ age = 1 }}

[tower]
program = "tower.pt2"
user_inputs = ["history"]
"""


class Tower(nn.Module):
    """A mean of what was seen, beside the candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(16 + 24 + 1, 1)

    def forward(
        self,
        price: Tensor,
        history: Tensor,
        history_lengths: Tensor,
        age: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        counts = history_lengths.clamp(min=1).to(torch.float32).unsqueeze(1)
        mean = (history * torch.sigmoid(age)).sum(1) / counts
        return torch.sigmoid(self.top(torch.cat([embeddings, mean, price], 1))).squeeze(1)


def sample(generator: np.random.Generator) -> dict[str, Any]:
    length = int(generator.integers(0, LONGEST + 10))
    return {
        "price": float(generator.random()),
        "candidate": int(generator.integers(ITEMS)),
        "seen": generator.integers(0, ITEMS, length).tolist(),
        "action": generator.integers(0, ACTIONS, length).tolist(),
        "age": generator.random(length).round(3).tolist(),
    }


@pytest.fixture(scope="module")
def trained() -> nn.ModuleDict:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.ModuleDict(
            {"item": nn.Embedding(ITEMS, 16), "action": nn.Embedding(ACTIONS, 8), "tower": Tower()}
        )


@pytest.fixture(scope="module")
def folder(trained: nn.ModuleDict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's files, as whoever trained it leaves them."""
    folder = tmp_path_factory.mktemp("feed")
    torch.save(trained.state_dict(), folder / "weights.pt")
    (folder / "model.toml").write_text(MODEL_TOML)
    program = export_tower(
        trained["tower"],
        dense={"price": 1},
        embedding_width=16,
        outputs=("score",),
        precision=Precision.FP32,
        sequences={"history": SequenceInput(width=24, max_length=LONGEST, dense={"age": 1})},
    )
    write_program(program, folder / "tower.pt2")
    generator = np.random.default_rng(0)
    lines = (json.dumps(sample(generator)) + "\n" for _ in range(200))
    (folder / "samples.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def words(folder: Path) -> tuple[object, ...]:
    return ("--spec", folder / "model.toml", "--weights", folder / "weights.pt")


def test_a_published_version_scores_histories_as_the_trained_modules_do(
    sharded_infer: Command, words: tuple[object, ...], folder: Path, trained: nn.ModuleDict,
    tmp_path: Path,
) -> None:  # fmt: skip
    samples, target = folder / "samples.jsonl", tmp_path / "models"
    done = sharded_infer(
        "publish", *words, "-r", target, "--calibration", samples, "--samples", samples
    )
    assert done.code == 0, done.err
    assert "calibration, 200 samples: scores differ by" in done.out
    model = open_model(target / "feed" / "1")
    one = sample(np.random.default_rng(7))
    count = min(len(one["seen"]), LONGEST)
    assert count > 0
    last = {name: torch.tensor(one[name][-count:]) for name in ("seen", "action", "age")}
    with torch.no_grad():
        rows = [trained["item"](last["seen"]), trained["action"](last["action"])]
        wanted = trained["tower"](
            torch.tensor([[one["price"]]]),
            torch.cat(rows, 1)[None],
            torch.tensor([count]),
            last["age"][None, :, None],
            trained["item"](torch.tensor([one["candidate"]])),
        )
    found = model.predict([one])
    np.testing.assert_allclose(found["score"], wanted.numpy(), atol=0.01)
