"""A small model, its trained rows, and changes of them."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.quantization_spec import GateSpec

Weights = dict[str, Tensor]


class Scorer(nn.Module):
    def __init__(self, width: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(width, 1)

    def forward(self, embeddings: Tensor) -> Tensor:
        return self.layer(embeddings).squeeze(1)


def delta_spec(row_format: RowFormat = RowFormat.INT8) -> ModelSpec:
    """Two tables, one of which two features read."""
    return ModelSpec(
        "ranker",
        (
            TableSpec("item", rows=3000, dim=16, pooling="sum", format=row_format),
            TableSpec(
                "user", rows=70, dim=8, pooling="mean", features=("x", "y"), format=row_format
            ),
        ),
        gate=GateSpec(max_score_diff=0.5),
    )


def trained_rows(spec: ModelSpec, seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in spec.tables}


def drawn_changes(spec: ModelSpec, seed: int, *, new: int = 0) -> dict[str, ChangedRows]:
    """Some rows of each table, and new rows of the first table."""
    generator = np.random.default_rng(seed)
    changes = {}
    for number, table in enumerate(spec.tables):
        ids = generator.choice(table.rows, max(1, table.rows // 50), replace=False)
        if number == 0:
            ids = np.concatenate([ids, np.arange(table.rows, table.rows + new)])
        generator.shuffle(ids)
        values = torch.from_numpy(generator.standard_normal((len(ids), table.dim), np.float32))
        changes[table.name] = ChangedRows(ids, values)
    return changes


def drawn_change(repository: Repository) -> dict[str, ChangedRows]:
    """A random first row of the first table of the latest version of `small`."""
    table = repository.manifest("small", repository.versions("small")[-1]).tables[0]
    row = np.random.default_rng(int.from_bytes(os.urandom(4))).standard_normal(
        table.dim, np.float32
    )
    return {table.name: ChangedRows(np.zeros(1, np.int64), torch.from_numpy(row)[None] / 100)}


def changed(
    spec: ModelSpec, weights: Weights, changes: Mapping[str, ChangedRows]
) -> tuple[ModelSpec, Weights]:
    found, tables = {}, []
    for table in spec.tables:
        rows = weights[table.name]
        one = changes.get(table.name)
        if one is not None and one.values is not None:
            count = max(len(rows), int(one.ids.max()) + 1)
            rows = torch.cat([rows, torch.zeros(count - len(rows), table.dim)])
            rows[torch.from_numpy(one.ids)] = one.values
        found[table.name] = rows
        tables.append(replace(table, rows=len(rows)))
    return replace(spec, tables=tuple(tables)), found


def publish_whole(
    spec: ModelSpec, weights: Weights, repository: Path, *, tower: nn.Module | None = None
) -> Path:
    width = spec.embedding_width
    tower = Scorer(width) if tower is None else tower
    return publish(spec, weights, tower, repository, topologies=("cpu:1", "cpu:2")).path
