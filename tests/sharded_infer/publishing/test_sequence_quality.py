from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quant.sources.weight_source import TensorSource
from sharded_infer.errors import GateError
from sharded_infer.publishing.format_selection import plan_formats
from sharded_infer.publishing.publication import publish
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.specs.model_spec import (
    GateSpec,
    ModelSpec,
    OutputGate,
    QuantizationSpec,
    TableSpec,
)
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_spec import SequenceSpec

SPEC = ModelSpec(
    "history",
    (
        TableSpec("item", 200, 16, features=("clicks",), pooling="mean"),
        TableSpec("user", 200, 16, pooling="mean"),
        TableSpec("action", 200, 16),
    ),
    quantization=QuantizationSpec("int4"),
    gate=GateSpec(max_score_diff=0.2),
    sequences={"seen": SequenceSpec(30, features=("clicks", "action"), dense={"age": 1})},
)


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(48, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(
        self, seen: Tensor, seen_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        items, actions = (seen * (1 + age)).sum(1).split(16, 1)
        counts = seen_lengths.clamp(min=1).to(torch.float32).unsqueeze(1)
        taken = torch.cat([items / counts, actions / counts / 50, embeddings], 1)
        hidden = torch.relu(self.second(torch.relu(self.first(taken))))
        return torch.sigmoid(self.last(hidden)).squeeze(1)


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def weights() -> dict[str, Tensor]:
    return {table.name: torch.randn(table.rows, table.dim) for table in SPEC.tables}


def samples(count: int = 40) -> list[dict[str, Any]]:
    generator = np.random.default_rng(0)
    found = []
    for number in range(count):
        length = int(generator.integers(0, 41))
        found.append(
            {
                "clicks": generator.integers(0, 200, length).tolist(),
                "action": generator.integers(0, 200, length).tolist(),
                "age": generator.random(length).tolist(),
                "user": [number % 200],
                "label": number % 2,
            }
        )
    return found


def test_a_budget_counts_each_row_of_a_sequence() -> None:
    statistics = statistics_of(SPEC, samples())
    assert statistics["clicks"].pooling_factor > 15 > statistics["user"].pooling_factor == 1
    # Room for two tables of int8 and one of int4.
    budget = QuantizationSpec(memory_budget=f"{(20 + 20 + 12) * 200 / 1000}KB")
    spec = replace(SPEC, quantization=budget)
    for given in (statistics, None):
        plan = plan_formats(spec, TensorSource(weights()), given)
        assert [str(table.row_format) for table in plan.tables] == ["int8", "int4", "int8"]


def test_a_calibration_blames_the_tables_of_sequences(tmp_path: Path) -> None:
    made = publish(SPEC, weights(), Tower(), tmp_path, calibration=samples())
    calibration = made.report.calibration
    assert calibration is not None and calibration.labelled == 40
    by_table = {c.table: c.mean_score_diff for c in calibration.contributions}
    assert by_table.keys() == {"item", "user", "action"}
    assert by_table["item"] > 10 * by_table["action"] > 0


def test_the_gate_names_the_table_of_a_sequence(tmp_path: Path) -> None:
    tables = tuple(replace(t, format="fp32") if t.name != "item" else t for t in SPEC.tables)
    spec = replace(SPEC, tables=tables, gate=GateSpec(max_score_diff=1e-6))
    with pytest.raises(GateError, match=r"contribute most, each by itself: item \([^;]*$"):
        publish(spec, weights(), Tower(), tmp_path, calibration=samples())


def test_an_int8_tower_takes_its_integers_from_sequences(tmp_path: Path) -> None:
    spec = replace(
        SPEC,
        tower=replace(SPEC.tower, precision=Precision.INT8),
        gate=GateSpec(outputs={"score": OutputGate(max_score_diff=0.3)}),
    )
    made = publish(spec, weights(), Tower(), tmp_path, calibration=samples())
    assert made.max_score_diff < 0.3
