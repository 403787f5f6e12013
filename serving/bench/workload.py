"""Models and requests that benchmarks serve: sizes as in production, weights and ids random."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from serving.bench.dlrm_v2 import DlrmV2
from serving.bench.request_message import request_message
from sharded_infer.errors import InputError
from sharded_infer.golden import generate_samples
from sharded_infer.precision import Precision
from sharded_infer.publication import publish
from sharded_infer.spec import ModelSpec, QuantizationSpec, ServingSpec, TableSpec, TowerSpec

_SEED = 20261121
_SAMPLES = 256  # golden requests


class BenchModel(Protocol):
    """A model and its requests, as benchmarks take them."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def in_precision(self, precision: Precision) -> Self:
        """The same model with a tower of another precision."""
        ...

    def spec(self, serving: ServingSpec | None = None) -> ModelSpec:
        """The model's spec; `serving`: how a server puts requests together."""
        ...

    def publish(self, repository: Path) -> None:
        """Publishes the model with random weights."""
        ...

    def messages(self, pairs: int, count: int, *, timeout_us: int = 0) -> list[bytes]:
        """So many different serialized ModelInferRequests, of `pairs` samples each."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """A model of equal tables, and the form of its requests.

    Attributes:
        name: what people call it.
        tables: embedding tables, of one feature each.
        rows: of each table.
        dim: of each table.
        ids: mean ids of a bag.
        ragged: bags of 1 to 2 x `ids` - 1 ids, sent with `.lengths`; otherwise `ids` a bag.
        layers: widths of the tower's hidden layers; it ends in one score.
        precision: of the tower.
    """

    name: str
    tables: int
    rows: int
    dim: int
    ids: int
    ragged: bool
    layers: tuple[int, ...]
    precision: Precision = Precision.BF16

    def in_precision(self, precision: Precision) -> Self:
        """The same model with a tower of another precision."""
        return replace(self, precision=precision)

    def spec(self, serving: ServingSpec | None = None) -> ModelSpec:
        """The model's spec.

        Args:
            serving: how a server puts requests together.
        """
        return ModelSpec(
            name=self.name,
            tables=tuple(TableSpec(f"C{n}", self.rows, self.dim) for n in range(self.tables)),
            tower=TowerSpec(precision=self.precision),
            quantization=QuantizationSpec(format=RowFormat.INT8),
            serving=serving or ServingSpec(),
        )

    def publish(self, repository: Path) -> None:
        """Publishes the model with random weights.

        Args:
            repository: where.
        """
        spec = self.spec()
        generator = torch.Generator().manual_seed(_SEED)
        tables = {
            table.name: torch.randn(table.rows, table.dim, generator=generator) / self.dim
            for table in spec.tables
        }
        weights = {f"{name}.weight": tensor for name, tensor in tables.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            tower = _Tower(spec.embedding_width, self.layers)
        # An int8 tower needs samples.
        samples = generate_samples(spec, _SAMPLES)
        publish(spec, weights, tower, repository, samples=samples)

    def messages(self, pairs: int, count: int, *, timeout_us: int = 0) -> list[bytes]:
        """Serialized ModelInferRequests of random, uniform ids.

        Args:
            pairs: samples of a request.
            count: how many different ones.
            timeout_us: KServe's `timeout` parameter; 0: none.
        """
        generator = np.random.default_rng(_SEED + pairs)
        return [self._message(pairs, generator, timeout_us) for _ in range(count)]

    def _message(self, pairs: int, generator: np.random.Generator, timeout_us: int) -> bytes:
        inputs: dict[str, NDArray[np.generic]] = {}
        for number in range(self.tables):
            if not self.ragged:
                inputs[f"C{number}"] = generator.integers(0, self.rows, (pairs, self.ids))
                continue
            lengths = generator.integers(1, 2 * self.ids, pairs, dtype=np.int32)
            inputs[f"C{number}"] = generator.integers(0, self.rows, lengths.sum())
            inputs[f"C{number}.lengths"] = lengths
        return request_message(self.name, inputs, timeout_us=timeout_us)


class _Tower(nn.Module):
    def __init__(self, width: int, layers: Sequence[int]) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        for size in layers:
            modules += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.layers = nn.Sequential(*modules, nn.Linear(width, 1))

    def forward(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = torch.sigmoid(self.layers(embeddings)).squeeze(1)
        return scores


_MODELS: tuple[BenchModel, ...] = (
    Workload("ranking", 26, 100_000, 64, 3, ragged=False, layers=(512, 256)),
    Workload("ragged", 100, 20_000, 16, 3, ragged=True, layers=(256, 128)),
    DlrmV2(),
)
WORKLOADS = {model.name: model for model in _MODELS}


def workload_named(name: str) -> BenchModel:
    """A workload.

    Raises:
        InputError: there is none of this name.
    """
    if name not in WORKLOADS:
        raise InputError(f"no workload is called {name!r}, expected one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
