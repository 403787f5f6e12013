"""Models and requests for benchmarks of servers: realistic sizes, random weights and ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.bench.workloads.dlrm_v2 import DlrmV2
from serving.bench.workloads.requests import request_message
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.errors import InputError
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.zoo.mlp import MLP

_SEED = 20261121
_SAMPLES = 256  # golden requests


@dataclass(frozen=True, slots=True)
class Workload:
    """A model of equal tables, and the shape of its requests.

    Attributes:
        ragged: bags of 1 to 2 x `ids` - 1 ids, sent with `.lengths`; otherwise `ids` a bag.
        layers: widths of the tower's hidden layers; it has one output.
    """

    name: str
    tables: int
    rows: int
    dim: int
    ids: int
    ragged: bool
    layers: tuple[int, ...]
    precision: Precision = Precision.BF16

    def spec(self) -> ModelSpec:
        """Int8 tables `C0` on, and the tower's precision."""
        return ModelSpec(
            name=self.name,
            tables=tuple(TableSpec(f"C{n}", self.rows, self.dim) for n in range(self.tables)),
            tower=TowerSpec(precision=self.precision),
            quantization=QuantizationSpec(format=RowFormat.INT8),
        )

    def publish(self, repository: Path, *, topologies: Sequence[str] = ("cpu:1",)) -> None:
        """Publish random weights."""
        spec = self.spec()
        generator = torch.Generator().manual_seed(_SEED)
        weights = {
            table.name: torch.randn(table.rows, table.dim, generator=generator) / self.dim
            for table in spec.tables
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            tower = _Tower(spec.embedding_width, self.layers)
        # An int8 tower needs samples.
        samples = generate_samples(spec, _SAMPLES)
        publish(spec, weights, tower, repository, topologies=topologies, samples=samples)

    def messages(self, pairs: int, count: int) -> list[bytes]:
        """Serialized ModelInferRequests of random, uniform ids."""
        generator = np.random.default_rng(_SEED + pairs)
        return [request_message(self.name, self._draw(pairs, generator)) for _ in range(count)]

    def _draw(self, pairs: int, generator: np.random.Generator) -> dict[str, NDArray[np.generic]]:
        inputs: dict[str, NDArray[np.generic]] = {}
        for number in range(self.tables):
            if not self.ragged:
                inputs[f"C{number}"] = generator.integers(0, self.rows, (pairs, self.ids))
                continue
            lengths = generator.integers(1, 2 * self.ids, pairs, dtype=np.int32)
            inputs[f"C{number}"] = generator.integers(0, self.rows, lengths.sum())
            inputs[f"C{number}.lengths"] = lengths
        return inputs


class _Tower(nn.Module):
    def __init__(self, width: int, layers: Sequence[int]) -> None:
        super().__init__()
        self.mlp = MLP([width, *layers, 1], activate_last=False)

    def forward(self, embeddings: Tensor) -> Tensor:
        return torch.sigmoid(self.mlp(embeddings)).squeeze(1)


BenchModel = Workload | DlrmV2
_MODELS: tuple[BenchModel, ...] = (
    Workload("ranking", 26, 100_000, 64, 3, ragged=False, layers=(512, 256)),
    Workload("ragged", 100, 20_000, 16, 3, ragged=True, layers=(256, 128)),
    DlrmV2(),
)
WORKLOADS = {model.name: model for model in _MODELS}


def workload_named(name: str, precision: Precision = Precision.BF16) -> BenchModel:
    """Look up a workload, with a tower of a precision; InputError for an unknown name."""
    if name not in WORKLOADS:
        raise InputError(f"no workload is called {name!r}, expected one of {', '.join(WORKLOADS)}")
    return replace(WORKLOADS[name], precision=precision)
