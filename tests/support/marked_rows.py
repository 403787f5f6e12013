"""A model whose scores tell the version of the rows that were read.

A row of either table is (its id, its id squared modulo 251, its version, the table's number); the
tower returns the pooled rows. All numbers are whole and small: sums are exact in any order.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer import ModelSpec, TableSpec, TowerSpec, publish
from sharded_infer.importing.changes.changed_rows import ChangedRows

MarkedInputs = dict[str, NDArray[np.int64]]
MODEL = "marked"
IDS = {"user": 1, "item": 3}
ROWS = {"user": 300, "item": 900}
DIM = 4
# A little more than half of all rows: both hosts hold rows of a table.
RANK_BYTES = 12_000
HOSTS = 2


class Rows(nn.Module):
    def forward(self, embeddings: Tensor) -> dict[str, Tensor]:
        return {"rows": embeddings}


def publish_marked(repository: Path, version: int) -> Path:
    """Publish a version of this number for two hosts of one rank; return its folder."""
    tables = tuple(TableSpec(name, rows, DIM, format=RowFormat.FP32) for name, rows in ROWS.items())
    weights = {
        name: torch.from_numpy(_rows(np.arange(rows), version, number))
        for number, (name, rows) in enumerate(ROWS.items())
    }
    topology = repository.parent / "hosts.topology.toml"
    rank = f'[[devices]]\ncard = "cpu"\nhost = {{}}\nmemory = "{RANK_BYTES / 1000}KB"\n'
    topology.write_text("".join(rank.format(host) for host in range(HOSTS)))
    spec = ModelSpec(MODEL, tables, tower=TowerSpec(outputs=("rows",)))
    published = publish(spec, weights, Rows(), repository, topologies=(str(topology),))
    return published.path


def marked_inputs(batch: int, generator: np.random.Generator) -> MarkedInputs:
    return {name: generator.integers(0, ROWS[name], (batch, count)) for name, count in IDS.items()}


def marked_rows(inputs: MarkedInputs, version: int) -> NDArray[np.float32]:
    """Answer of a version, `[batch, 2 DIM]`."""
    pooled = [_rows(inputs[name], version, n).sum(1) for n, name in enumerate(IDS)]
    return np.concatenate(pooled, 1)


class MarkedDeltas:
    """Versions that each change some rows of the previous one; a row has its last version."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        # By version: the mark of each row of each table.
        self._marks = {1: {name: np.ones(rows, np.int64) for name, rows in ROWS.items()}}

    def changes(self, version: int, *, base: int | None = None) -> dict[str, ChangedRows]:
        """Draw a version's changes of its base, by default the previous version."""
        marks = {n: m.copy() for n, m in self._marks[base or version - 1].items()}
        found = {}
        for number, name in enumerate(IDS):
            ids = self._generator.choice(ROWS[name], ROWS[name] // 20, replace=False)
            marks[name][ids] = version
            found[name] = ChangedRows(ids, torch.from_numpy(_rows(ids, version, number)))
        self._marks[version] = marks
        return found

    def same(self, version: int, as_version: int) -> None:
        self._marks[version] = self._marks[as_version]

    def rows(self, inputs: MarkedInputs, version: int) -> NDArray[np.float32]:
        marks = self._marks[version]
        pooled = [
            _rows(inputs[name], marks[name][inputs[name]], n).sum(1) for n, name in enumerate(IDS)
        ]
        return np.concatenate(pooled, 1)


def _rows(
    ids: NDArray[np.int64], version: int | NDArray[np.int64], table: int
) -> NDArray[np.float32]:
    columns = (ids, ids**2 % 251, np.full_like(ids, version), np.full_like(ids, table))
    return np.stack(columns, -1).astype(np.float32)
