"""Versions whose ids take steps: scores have the bits of rows that were computed by the client."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer import DenseSpec, ModelSpec, QuantizationSpec, TableSpec, open_model, publish
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.errors import RequestError, SpecError
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.sampled_ids import sampled_frequencies
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.id_steps import IdStep, apply_steps
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.raw_ids import Arrays, source_of

# Quotient and remainder of one id; offsets in a shared table; a sequence; and ids as they are.
STEPS: dict[str, dict[str, tuple[IdStep, ...]]] = {
    "quotient": {"id": (("divide", 20),)},
    "remainder": {"id": (("remainder", 20),)},
    "fields": {
        "price": (("at_least", 0), ("at_most", 9)),
        "shop": (("multiply", -2), ("add", 200)),
    },
    "seen": {"seen": (("add", -500),)},
}
TABLES = (
    TableSpec("quotient", 30, 8, features=("id",)),
    TableSpec("remainder", 20, 8, "mean", features=("id",)),
    TableSpec("fields", 40, 4, features=("price", "shop", "plain"), out_of_range="ignore",
              padding_idx=6),
    TableSpec("seen", 60, 4, out_of_range="modulo", padding_idx=0),
)  # fmt: skip
ROWS = ModelSpec(
    "rows",
    TABLES,
    DenseSpec({"age": 1}),
    quantization=QuantizationSpec("int8"),
    sequences={"history": SequenceSpec(5, ("seen",))},
)
STEPPED = replace(
    ROWS,
    name="stepped",
    tables=tuple(replace(table, id_steps=STEPS[table.name]) for table in TABLES),
)


class Tower(nn.Module):
    def forward(
        self, age: Tensor, history: Tensor, history_lengths: Tensor, embeddings: Tensor
    ) -> Tensor:
        return embeddings.mean(1) + age.squeeze(1) + history.sum((1, 2)) / (history_lengths + 1.0)


class Sum(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.sum(1)


def trained() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}


def request(batch: int, seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    limits = {"id": (0, 600), "price": (-9, 99), "shop": (75, 110), "plain": (-3, 50),
              "seen": (400, 700)}  # fmt: skip
    inputs: Arrays = {"age": generator.normal(size=(batch, 1)).astype(np.float32)}
    for name, (first, last) in limits.items():
        lengths = generator.integers(0, 5, batch)
        inputs |= {
            name: generator.integers(first, last, int(lengths.sum())),
            f"{name}.lengths": lengths,
        }
    return inputs


def test_scores_are_those_of_rows_to_the_bit(tmp_path: Path) -> None:
    # In one model the steps are the spec's, in the other the client's: features of one table each.
    apart = replace(
        ROWS, tables=tuple(replace(t, features=(t.name,)) if t.name in ("quotient", "remainder")
        else t for t in TABLES),
    )  # fmt: skip
    samples = request(300, seed=1)
    stepped = publish(
        STEPPED, trained(), Tower(), tmp_path, calibration=samples, order_rows="frequency",
        frequencies=sampled_frequencies(STEPPED, samples),
    )  # fmt: skip
    rows = open_model(publish(apart, trained(), Tower(), tmp_path).path)
    asked = request(64, seed=2)
    sent = dict(asked)
    ids = sent.pop("id"), sent.pop("id.lengths")
    for name in ("quotient", "remainder"):
        sent |= {name: apply_steps(STEPS[name]["id"], ids[0]), f"{name}.lengths": ids[1]}
    for name in ("price", "shop"):
        sent[name] = apply_steps(STEPS["fields"][name], sent[name])
    sent["seen"] = apply_steps(STEPS["seen"]["seen"], sent["seen"])
    expected = rows.predict(sent)["score"]
    plain = publish(STEPPED, trained(), Tower(), tmp_path)
    assert open_model(stepped.path).spec.ordered_tables
    for model in map(open_model, (stepped.path, plain.path)):
        check_golden(model)
        assert model.predict(asked)["score"].tobytes() == expected.tobytes()
        assert model.artifact.manifest.format_version == 2
    with pytest.raises(RequestError, match="id 600, row 30 after id_steps, is outside table 'quot"):
        model.predict({"age": np.zeros((1, 1), np.float32), "id": np.array([600])})


def test_a_delta_has_the_steps_of_its_base(tmp_path: Path) -> None:
    publish(STEPPED, trained(), Tower(), tmp_path)
    values = torch.full((2, 8), 3.0)
    changes = {"quotient": ChangedRows(np.array([2, 30]), values)}
    model = open_model(publish_delta("stepped", changes, tmp_path).path)
    assert [table.id_steps for table in model.spec.tables] == list(STEPS.values())
    age = np.zeros((1, 1), np.float32)
    changed = [model.predict({"age": age, "id": np.array([id_])})["score"] for id_ in (41, 601)]
    # The same remainder, and equal rows of the quotients.
    assert changed[0].tobytes() == changed[1].tobytes()


def test_golden_requests_have_ids_as_they_are_sent(tmp_path: Path) -> None:
    offset = TableSpec("offset", 9, 4, features=("id",), id_steps={"id": (("add", -1000),)})
    raw = TableSpec("raw", 8, 4, id_map=IdMapSpec("error"))
    maps = {"raw": source_of({2**40 + n: n for n in range(8)})}
    weights = {name: torch.ones(9, 4)[: 8 if name == "raw" else 9] for name in ("offset", "raw")}
    path = publish(ModelSpec("m", (offset, raw)), weights, Sum(), tmp_path, id_maps=maps).path
    golden = open_artifact(path).manifest.golden
    assert golden.samples == 64
    check_golden(open_model(path))
    # A feature that is a raw id of one table, and an offset of another.
    both = replace(raw, features=("id",))
    words = "feature 'id': found no id that all its tables know"
    with pytest.raises(SpecError, match=words):
        publish(ModelSpec("m", (offset, both)), weights, Sum(), tmp_path, id_maps=maps)
    near = {"raw": source_of({1004 + n: n for n in range(8)})}
    path = publish(ModelSpec("m", (offset, both)), weights, Sum(), tmp_path, id_maps=near).path
    check_golden(open_model(path))


def test_steps_that_leave_no_row_need_samples_of_requests(tmp_path: Path) -> None:
    table = TableSpec("a", 9, 4, id_steps={"a": (("add", -(2**62)), ("divide", 2**61))})
    spec, weights = ModelSpec("m", (table,)), {"a": torch.ones(9, 4)}
    model = open_model(publish(spec, weights, Sum(), tmp_path).path)
    assert model.predict({"a": np.array([2**62 + 2**61])})["score"] == [4.0]
    nowhere = replace(table, id_steps={"a": (("remainder", 9), ("add", 9))})
    with pytest.raises(SpecError, match="feature 'a': found no id that all its tables know"):
        publish(replace(spec, tables=(nowhere,)), weights, Sum(), tmp_path)
