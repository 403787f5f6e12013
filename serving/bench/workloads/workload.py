"""Models of tables and a tower, of realistic sizes, with random weights and requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.bench.workloads.requests import IdDistribution, draw_ids, request_message
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.progress import Progress, no_progress
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import (
    DenseSpec,
    ModelSpec,
    QuantizationSpec,
    TableSpec,
    TowerSpec,
)
from sharded_infer.specs.precision import Precision
from sharded_infer.zoo.mlp import MLP

DENSE = "dense"
Inputs = Mapping[str, NDArray[Any]]
_SEED = 20261121
_GOLDEN_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class Workload:
    """A model of int8 tables `C0` on, and the shape of its requests.

    Attributes:
        rows: of each table.
        ids: of a bag of each table.
        build: makes the tower.
        dense_width: of the input `dense`; 0: there is none.
        ragged: bags of 1 to 2 x `ids` - 1 ids, sent with `.lengths`; otherwise `ids` a bag.
    """

    name: str
    rows: tuple[int, ...]
    dim: int
    ids: tuple[int, ...]
    build: Callable[[], nn.Module]
    dense_width: int = 0
    ragged: bool = False
    distribution: IdDistribution = IdDistribution.UNIFORM
    precision: Precision = Precision.BF16

    def spec(self) -> ModelSpec:
        """Description of the model."""
        return ModelSpec(
            name=self.name,
            tables=tuple(TableSpec(f"C{n}", rows, self.dim) for n, rows in enumerate(self.rows)),
            dense=DenseSpec({DENSE: self.dense_width} if self.dense_width else {}),
            tower=TowerSpec(precision=self.precision),
            quantization=QuantizationSpec(format=RowFormat.INT8),
        )

    def tower(self) -> nn.Module:
        """The tower with random weights, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return self.build()

    def publish(
        self,
        repository: Path,
        progress: Progress = no_progress,
        topologies: Sequence[str] = ("cpu:1",),
    ) -> Path:
        """Publish random weights, without a table in memory; return the path."""
        spec = self.spec()
        # Drawn as requests are: an int8 tower is calibrated on them.
        samples = make_input(spec, self.draw(np.random.default_rng(_SEED), _GOLDEN_SAMPLES))
        published = publish(
            spec,
            _RepeatedRows({table.name: table.rows for table in spec.tables}, self.dim),
            self.tower(),
            repository,
            topologies=topologies,
            samples=samples,
            progress=progress,
        )
        return published.path

    def draw(self, generator: np.random.Generator, pairs: int) -> Inputs:
        """Draw a request: fp32 `[B, width]`, and int64 ids `[B, ids]`, or ragged `[N]`."""
        inputs: dict[str, NDArray[Any]] = {}
        if self.dense_width:
            shape = (pairs, self.dense_width)
            inputs[DENSE] = generator.standard_normal(shape, dtype=np.float32)
        for number, (rows, ids) in enumerate(zip(self.rows, self.ids, strict=True)):
            name = f"C{number}"
            if self.ragged:
                lengths = generator.integers(1, 2 * ids, pairs, dtype=np.int32)
                inputs[f"{name}.lengths"] = lengths
                inputs[name] = draw_ids(generator, self.distribution, rows, int(lengths.sum()))
            else:
                drawn = draw_ids(generator, self.distribution, rows, pairs * ids)
                inputs[name] = drawn.reshape(pairs, ids)
        return inputs

    def messages(self, pairs: int, count: int) -> list[bytes]:
        """Serialized ModelInferRequests, the same at every call."""
        generator = np.random.default_rng(_SEED + pairs)
        return [request_message(self.name, self.draw(generator, pairs)) for _ in range(count)]


def equal_tables(
    name: str,
    tables: int,
    rows: int,
    dim: int,
    ids: int,
    *,
    layers: Sequence[int],
    ragged: bool = False,
    precision: Precision = Precision.BF16,
) -> Workload:
    """A model of equal tables, and a tower of hidden layers and one output."""
    sizes = tables * dim, *layers, 1
    return Workload(
        name,
        (rows,) * tables,
        dim,
        (ids,) * tables,
        lambda: _LayersTower(sizes),
        ragged=ragged,
        precision=precision,
    )


class _LayersTower(nn.Module):
    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.mlp = MLP(sizes, activate_last=False)

    def forward(self, embeddings: Tensor) -> Tensor:
        return torch.sigmoid(self.mlp(embeddings)).squeeze(1)


class _RepeatedRows:
    """A source of tables that repeat one random block, since in fp32 they can exceed the memory."""

    _BLOCK = 65_536
    _SHIFT = 7_919  # rows between the beginnings of two tables

    def __init__(self, rows: Mapping[str, int], dim: int) -> None:
        self.description = "random rows"
        self._rows, self._dim = rows, dim
        self._starts = {name: number * self._SHIFT for number, name in enumerate(rows)}
        generator = torch.Generator().manual_seed(_SEED)
        self._block = torch.randn(self._BLOCK, dim, generator=generator) / dim

    def keys(self) -> Iterable[str]:
        return self._rows.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        return self._rows[key], self._dim

    def read(self, key: str, start: int, stop: int) -> Tensor:
        first = self._starts[key]
        return self._block[torch.arange(first + start, first + stop) % self._BLOCK]
