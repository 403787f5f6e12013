import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sharded_infer import Precision, export_tower, open_model, write_program
from tests.support.servers import Command

SPEC = """
name = "clicks"
[dense]
inputs = { age = 1 }
[tower]
program = "tower.pt2"
[[tables]]
name = "item"
rows = 640
dim = 4
[tables.id_map]
file = "items.npz"
[[tables]]
name = "word"
rows = 3
dim = 2
[tables.id_map]
file = "words.txt"
strings = "xxh3_64"
unknown = "zero"
"""


class Sum(nn.Module):
    def forward(self, age: Tensor, embeddings: Tensor) -> Tensor:
        return embeddings.sum(1) + age.squeeze(1)


class Files(NamedTuple):
    folder: Path
    ids: list[int]
    weights: dict[str, Tensor]

    def of(self, command: str, *more: object) -> tuple[object, ...]:
        named = () if command == "plan" else ("--weights", self.folder / "w.safetensors")
        return (command, "--spec", self.folder / "model.toml", *named, *more)

    def samples(self, samples: list[dict[str, object]]) -> Path:
        path = self.folder / "samples.json"
        path.write_text(json.dumps(samples))
        return path


@pytest.fixture
def files(tmp_path: Path) -> Files:
    generator = torch.Generator().manual_seed(0)
    weights = {
        "item": torch.randn(640, 4, generator=generator),
        "word": torch.randn(3, 2, generator=generator),
    }
    save_file(weights, tmp_path / "w.safetensors")
    ids = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, 640)
    np.savez(tmp_path / "items.npz", id=ids)
    (tmp_path / "words.txt").write_text("red\ngreen\nblue\n")
    (tmp_path / "model.toml").write_text(SPEC)
    program = export_tower(
        Sum(), dense={"age": 1}, embedding_width=6, outputs=("score",), precision=Precision.FP32
    )
    write_program(program, tmp_path / "tower.pt2")
    return Files(tmp_path, ids.tolist(), weights)


def honest(files: Files) -> list[dict[str, object]]:
    """All reads of items go to the first ten rows; some words are unknown."""
    return [
        {"age": float(n), "item": files.ids[n % 10], "word": ["red", "pink", "blue"][: n % 4]}
        for n in range(40)
    ]


def test_a_strangers_model_is_quantized_published_and_scored(
    files: Files, sharded_infer: Command
) -> None:
    samples = files.samples(honest(files))
    out, repository = files.folder / "out", files.folder / "models"
    done = sharded_infer(*files.of("quantize", "--out", out, "--calibration", samples, "--json"))
    assert done.json()["calibration"]["samples"] == 40
    options = ("--calibration", samples, "--samples", samples, "-r", repository)
    assert sharded_infer(*files.of("publish", *options, "--json")).json()["version"] == 1
    assert sharded_infer("verify", "-r", repository, "--json").json()["version"] == 1
    scores = sharded_infer("predict", samples, "-r", repository, "--json").json()["scores"]["score"]
    item, word = files.weights["item"], files.weights["word"]
    words = [word[list(rows)].sum() for rows in ((), (0,), (0,), (0, 2))]
    wanted = [n + float(item[n % 10].sum() + words[n % 4]) for n in range(40)]
    assert np.allclose(scores, wanted, atol=0.01)


def test_a_plan_knows_which_rows_raw_ids_read(files: Files, sharded_infer: Command) -> None:
    samples, plan = files.samples(honest(files)), files.folder / "plan.json"
    options = ("--samples", samples, "--topology", "cpu:2x8KB", "--json", plan)
    sharded_infer(*files.of("plan", *options))
    skewed = json.loads(plan.read_text())["ranks"]
    (files.folder / "items.npz").unlink()
    sharded_infer(*files.of("plan", *options)).refused("items.npz", "cannot be read: No such file")
    (files.folder / "model.toml").write_text(SPEC.replace('file = "items.npz"', ""))
    sharded_infer(*files.of("plan", *options))
    assert json.loads(plan.read_text())["ranks"] != skewed


def test_rows_are_ordered_by_how_often_samples_read_them(
    files: Files, sharded_infer: Command
) -> None:
    ids = files.ids
    samples = files.samples(
        [{"age": 1.0, "item": [ids[600]] * 9 + [ids[5], 7], "word": "blue"} for _ in range(3)]
    )
    ordered, plain = files.folder / "ordered", files.folder / "plain"
    options = ("--samples", samples, "--order-rows", "frequency")
    assert sharded_infer(*files.of("publish", *options, "-r", ordered)).code == 0
    model = open_model(ordered / "clicks" / "1")
    assert model.id_maps["item"].known(np.array([*ids[:3], ids[600], ids[5]])).tolist() == [
        *(2, 3, 4),
        *(0, 1),
    ]
    sharded_infer(*files.of("publish", "--order-rows", "frequency", "-r", plain)).refused(
        "order_rows: expected a table of which it is known how often its rows are used"
    )
