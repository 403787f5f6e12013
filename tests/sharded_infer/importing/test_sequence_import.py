import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quant.sources.checkpoint import open_weights
from sharded_infer.engines.model import open_model
from sharded_infer.errors import GateError, SpecError
from sharded_infer.importing.spec_draft import draft_spec
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.specs.spec_file import parse_spec
from tests.support.torchrec_models import TorchRec

pytestmark = pytest.mark.usefixtures("seeded")
SPEC = ModelSpec(
    "history",
    (TableSpec("item", 50, 16, "sum", ("candidate", "clicks")), TableSpec("action", 7, 16)),
    quantization=QuantizationSpec("fp32"),
    sequences={"seen": SequenceSpec(12, features=("clicks", "action"), dense={"age": 1})},
)
SAMPLES = {
    "candidate": [3, 49, 7],
    "clicks": [[1, 2, 49], [], [8]],
    "action": [[0, 6, 3], [], [2]],
    "age": [[0.5, 1.0, 2.0], [], [3.0]],
}


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48))

    def forward(
        self, seen: Tensor, seen_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        rows = (seen * (1 + age)).sum(1)
        return torch.tanh(torch.cat([rows, embeddings], 1) @ self.weight / 8)


def collection(rec: TorchRec) -> Any:
    configs = [
        rec.configs.EmbeddingConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.dim,
            feature_names=list(table.features or (table.name,)),
        )
        for table in SPEC.tables
    ]
    made = rec.embeddings.EmbeddingCollection(tables=configs)
    for weight in made.parameters():
        nn.init.normal_(weight)
    return made


def eager(tables: Any, tower: Tower) -> np.ndarray:
    scores = []
    for at, candidate in enumerate(SAMPLES["candidate"]):
        clicks, actions = (
            torch.tensor(SAMPLES[n][at], dtype=torch.int64) for n in ("clicks", "action")
        )
        rows = torch.cat([tables["item"](clicks), tables["action"](actions)], 1)
        age = torch.tensor(SAMPLES["age"][at]).reshape(1, -1, 1)
        one = tables["item"](torch.tensor([candidate]))
        scores.append(tower(rows[None], torch.tensor([len(clicks)]), age, one))
    return torch.cat(scores).detach().numpy()


def test_a_sequence_of_other_rows_is_refused_by_feature(tmp_path: Path) -> None:
    class Turned(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(self.num_embeddings - 1 - ids)

    tables = {"item": nn.Embedding(50, 16), "action": Turned(7, 16)}
    with pytest.raises(GateError, match="'action', table 'action': rows of the sequence differ"):
        publish(SPEC, tables, Tower(), tmp_path)


def test_a_collection_is_published_and_compared(rec: TorchRec, tmp_path: Path) -> None:
    rows, tower = collection(rec), Tower()
    made = publish(SPEC, rows, tower, tmp_path)
    assert made.report.imported is not None
    assert made.report.imported.max_embedding_diff == 0.0
    samples = [{name: values[at] for name, values in SAMPLES.items()} for at in range(3)]
    scores = open_model(made.path).predict(samples)["score"]
    np.testing.assert_allclose(scores, eager(rows.embeddings, tower), rtol=1e-6, atol=1e-6)


def test_a_checkpoint_of_a_collection_drafts_sequences(rec: TorchRec, tmp_path: Path) -> None:
    model = nn.ModuleDict({"rows": collection(rec), "bags": rec.collection()})
    path = tmp_path / "model.pt"
    torch.save(model.state_dict(), path)
    draft = draft_spec(open_weights(path), "history", max_length=30)
    spec = parse_spec(tomllib.loads(draft))
    assert spec.sequences == {n: SequenceSpec(30, features=(n,)) for n in ("item", "action")}
    pooled = {table.name: table.pooling for table in spec.tables}
    assert pooled.pop("item") is pooled.pop("action") is None
    assert set(pooled.values()) == {"sum"} and len(pooled) == 3
    marked = [line for line in draft.splitlines() if "# CHECK: " in line]
    assert [line for line in marked if "such as a candidate" in line]
    assert sum(line.startswith("max_length = 30") for line in marked) == 2
    with pytest.raises(SpecError, match="max_length"):
        draft_spec(open_weights(path), "history", max_length=0)


@pytest.mark.parametrize("name", ["embeddings", "a_lengths"])
def test_a_drafted_sequence_takes_no_name_of_another_input(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({f"embeddings.{n}.weight": torch.zeros(3, 4) for n in ("a", name)}, path)
    spec = parse_spec(tomllib.loads(draft_spec(open_weights(path), "history")))
    assert list(spec.sequences) == ["a", f"{name}_sequence"]
    assert {one.max_length for one in spec.sequences.values()} == {200}


def test_rows_of_a_quantized_collection_stay_as_they_are(rec: TorchRec, tmp_path: Path) -> None:
    quantized: Any = rec.quantized(nn.Sequential(collection(rec)))[0]
    made = publish(replace(SPEC, quantization=QuantizationSpec()), quantized, Tower(), tmp_path)
    assert made.report.imported is not None
    assert made.report.imported.max_embedding_diff == 0.0
    version = open_model(made.path)
    assert {table.row_format for table in version.artifact.manifest.tables} == {"int8"}
    assert version.artifact.manifest.table_bytes == 57 * (16 + 4)
