"""What the pages' reader has: a trained ranker, its description, samples, and versions of it."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sharded_infer import Precision, Repository, export_tower, publish, write_program
from sharded_infer.importing.torchrec_model import from_torchrec
from tests.docs.blocks import blocks_of

ROWS, DIM, DENSE = 5000, 64, 13


def prepare(folder: Path) -> None:
    """Writes it into an empty folder.

    `model.toml` describes the ranker in `checkpoint.pt`; `other.pt` has other rows, and `tower.pt2`
    another tower. `models` is a repository with three versions. `samples.jsonl` and the labelled
    `clicks.tsv` have samples.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = _trained()
        torch.save(model.state_dict(), folder / "checkpoint.pt")
        torch.save(_trained().state_dict(), folder / "other.pt")
        spec, weights, tower = from_torchrec(model, "ranker")
        (folder / "model.toml").write_text(spec.to_toml())
        for _ in range(3):
            publish(spec, weights, tower, folder / "models")
        _, _, other = from_torchrec(_trained(), "ranker")
    program = export_tower(
        other,
        dense={"dense": DENSE},
        embedding_width=2 * DIM,
        outputs=spec.tower.outputs,
        precision=Precision.FP32,
    )
    write_program(program, folder / "tower.pt2")
    assert Repository(folder / "models").versions("ranker") == [1, 2, 3]
    samples = [block for block in blocks_of("docs/requests.md") if block.language == "json"]
    (folder / "samples.jsonl").write_text(samples[0].text)
    generator = np.random.default_rng(0)
    with (folder / "clicks.tsv").open("w", newline="") as file:
        written = csv.writer(file, delimiter="\t")
        written.writerow(["item", "user", "dense", "label"])
        for _ in range(50):
            ids = generator.integers(0, 100, 2)
            dense = " ".join(map(str, generator.random(DENSE)))
            written.writerow([*ids, dense, generator.integers(0, 2)])


def _trained() -> nn.Module:
    """A DLRM of TorchRec's with random weights."""
    dlrm = pytest.importorskip("torchrec.models.dlrm")
    configs = pytest.importorskip("torchrec.modules.embedding_configs")
    modules = pytest.importorskip("torchrec.modules.embedding_modules")
    tables = [
        configs.EmbeddingBagConfig(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name]
        )
        for name in ("item", "user")
    ]
    collection = modules.EmbeddingBagCollection(tables=tables)
    model: nn.Module = dlrm.DLRM(collection, DENSE, [32, DIM], [32, 1]).eval()
    return model
