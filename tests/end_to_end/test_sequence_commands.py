"""The commands that make a version, with a model that has a sequence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
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


def test_a_published_version_scores_histories_as_the_trained_modules_do(
    sharded_infer: Command, tmp_path: Path
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        item, action, tower = nn.Embedding(ITEMS, 16), nn.Embedding(ACTIONS, 8), Tower()
    modules = nn.ModuleDict({"item": item, "action": action, "tower": tower})
    torch.save(modules.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "model.toml").write_text(MODEL_TOML)
    program = export_tower(
        tower,
        dense={"price": 1},
        embedding_width=16,
        outputs=("score",),
        precision=Precision.FP32,
        sequences={"history": SequenceInput(width=24, max_length=LONGEST, dense={"age": 1})},
    )
    write_program(program, tmp_path / "tower.pt2")
    generator, samples = np.random.default_rng(0), tmp_path / "samples.jsonl"
    samples.write_text("".join(json.dumps(sample(generator)) + "\n" for _ in range(200)))
    words = ("--spec", tmp_path / "model.toml", "--weights", tmp_path / "weights.pt")
    options = ("-r", tmp_path / "models", "--calibration", samples, "--samples", samples)
    done = sharded_infer("publish", *words, *options)
    assert done.code == 0, done.err
    assert "calibration, 200 samples: scores differ by" in done.out
    model = open_model(tmp_path / "models" / "feed" / "1")
    one = sample(np.random.default_rng(7))
    count = min(len(one["seen"]), LONGEST)
    assert count > 0
    last = {name: torch.tensor(one[name][-count:]) for name in ("seen", "action", "age")}
    with torch.no_grad():
        rows = [item(last["seen"]), action(last["action"])]
        wanted = tower(
            torch.tensor([[one["price"]]]),
            torch.cat(rows, 1)[None],
            torch.tensor([count]),
            last["age"][None, :, None],
            item(torch.tensor([one["candidate"]])),
        )
    found = model.predict([one])
    np.testing.assert_allclose(found["score"], wanted.numpy(), atol=0.01)
