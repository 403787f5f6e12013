"""A model whose scores tell which rows of which version were found.

A row of either table is (its id, its id squared modulo 251, its version, the table's number); the
tower passes the pooled rows on. All numbers are whole and small: sums are exact, in whatever order.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer import ModelSpec, TableSpec, TowerSpec, publish

MarkedInputs = dict[str, NDArray[np.int64]]
MODEL = "marked"
IDS = {"user": 1, "item": 3}
ROWS = {"user": 300, "item": 900}
DIM = 4
# Half of all rows and a little more: both hosts hold rows of a table.
RANK_BYTES = 12_000
HOSTS = 2


class Rows(nn.Module):
    """The pooled rows themselves."""

    def forward(self, embeddings: Tensor) -> dict[str, Tensor]:
        return {"rows": embeddings}


def publish_marked(repository: Path, version: int) -> Path:
    """Publishes a version for two hosts of one rank; returns its folder.

    Args:
        version: that this one will be.
    """
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
    """Ids drawn at random, `[batch, ids]` of each table."""
    return {name: generator.integers(0, ROWS[name], (batch, count)) for name, count in IDS.items()}


def marked_rows(inputs: MarkedInputs, version: int) -> NDArray[np.float32]:
    """What a version answers, `[batch, 2 DIM]`."""
    pooled = [_rows(inputs[name], version, n).sum(1) for n, name in enumerate(IDS)]
    return np.concatenate(pooled, 1)


def _rows(ids: NDArray[np.int64], version: int, table: int) -> NDArray[np.float32]:
    """Rows `[..., DIM]` of ids `[...]`."""
    columns = (ids, ids**2 % 251, np.full_like(ids, version), np.full_like(ids, table))
    return np.stack(columns, -1).astype(np.float32)
