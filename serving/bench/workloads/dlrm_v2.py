"""MLPerf Inference's DLRM-v2: tables, tower, random weights and requests."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
from sharded_infer.zoo.registry import build_tower

# MLPerf Inference v4.0 to v5.1, recommendation/dlrm_v2: num_embeddings_per_feature,
# multi_hot_sizes and the layers of the reference implementation's command line.
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152),
    *(12_973, 108, 36),
)
IDS_OF_A_BAG = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)
DIM = 128
DENSE_WIDTH = 13
BOTTOM = (512, 256, DIM)
TOP = (1024, 1024, 512, 256, 1)
CROSS_LAYERS, CROSS_RANK = 3, 512
DEFAULT_MAX_ROWS = 2_000_000
# The user's features in requests of one user, the long histories among them. The first six
# are the candidate's.
USER_FEATURES = range(6, 26)
_DENSE = "dense"
_ARCHITECTURE = "dcnv2"
_SEED = 20261121
_GOLDEN_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class DlrmRequest:
    """Dense inputs, fp32 `[B, 13]`, and int64 ids `[B, L]` of each feature.

    L is of `IDS_OF_A_BAG`; ids that the samples share are `[1, L]`.
    """

    dense: NDArray[np.float32]
    ids: tuple[NDArray[np.int64], ...]

    def inputs(self) -> dict[str, NDArray[np.generic]]:
        """Arrays by the name of their input."""
        return {_DENSE: self.dense, **{f"C{n}": matrix for n, matrix in enumerate(self.ids)}}


def one_user(request: DlrmRequest, *, expanded: bool) -> DlrmRequest:
    """The request with its first sample's user for all samples, repeated B times if `expanded`."""
    samples = len(request.dense) if expanded else 1
    ids = tuple(
        np.repeat(matrix[:1], samples, axis=0) if number in USER_FEATURES else matrix
        for number, matrix in enumerate(request.ids)
    )
    return DlrmRequest(request.dense, ids)


@dataclass(frozen=True, slots=True)
class DlrmV2:
    """The model, with tables cut to `max_rows`, and its random requests."""

    name: str = "dlrm-v2"
    max_rows: int = DEFAULT_MAX_ROWS
    ids: IdDistribution = IdDistribution.ZIPF
    precision: Precision = Precision.BF16

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each table."""
        return tuple(min(rows, self.max_rows) for rows in ROWS)

    def spec(self) -> ModelSpec:
        """Int8 tables `C0` to `C25`, one dense input, a DCNv2."""
        return ModelSpec(
            name=self.name,
            tables=tuple(TableSpec(f"C{n}", rows, DIM) for n, rows in enumerate(self.rows)),
            dense=DenseSpec({_DENSE: DENSE_WIDTH}),
            tower=TowerSpec(
                architecture=_ARCHITECTURE,
                precision=self.precision,
                options={
                    "bottom": list(BOTTOM),
                    "top": list(TOP),
                    "cross_layers": CROSS_LAYERS,
                    "cross_rank": CROSS_RANK,
                },
            ),
            quantization=QuantizationSpec(format=RowFormat.INT8),
        )

    def tower(self) -> nn.Module:
        """The tower with random weights, the same at every call."""
        spec = self.spec()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return build_tower(
                _ARCHITECTURE,
                dense_inputs=spec.dense.inputs,
                feature_dims=[feature.table.dim for feature in spec.features],
                options=spec.tower.options,
            )

    def publish(
        self,
        repository: Path,
        progress: Progress = no_progress,
        topologies: Sequence[str] = ("cpu:1",),
    ) -> Path:
        """Publish random weights, 132 bytes a row, without a table in memory; return the path."""
        spec = self.spec()
        weights = _RepeatedRows({table.name: table.rows for table in spec.tables})
        # Drawn as requests are: an int8 tower is calibrated on them.
        drawn = self.draw(np.random.default_rng(_SEED), _GOLDEN_SAMPLES)
        samples = make_input(spec, drawn.inputs())
        published = publish(
            spec,
            weights,
            self.tower(),
            repository,
            topologies=topologies,
            samples=samples,
            progress=progress,
        )
        return published.path

    def draw(self, generator: np.random.Generator, pairs: int) -> DlrmRequest:
        """Draw a random request."""
        ids = tuple(
            draw_ids(generator, self.ids, rows, pairs * count).reshape(pairs, count)
            for rows, count in zip(self.rows, IDS_OF_A_BAG, strict=True)
        )
        return DlrmRequest(generator.standard_normal((pairs, DENSE_WIDTH), dtype=np.float32), ids)

    def message(self, request: DlrmRequest) -> bytes:
        """Serialize a request as a ModelInferRequest."""
        return request_message(self.name, request.inputs())

    def messages(self, pairs: int, count: int) -> list[bytes]:
        """Serialized ModelInferRequests of random ids."""
        generator = np.random.default_rng(_SEED + pairs)
        return [self.message(self.draw(generator, pairs)) for _ in range(count)]


class _RepeatedRows:
    """A source of tables that repeat one random block, since in fp32 they can exceed the memory."""

    _BLOCK = 65_536
    _SHIFT = 7_919  # rows between the beginnings of two tables

    def __init__(self, rows: dict[str, int]) -> None:
        self.description = "random rows"
        self._rows = rows
        self._starts = {name: number * self._SHIFT for number, name in enumerate(rows)}
        generator = torch.Generator().manual_seed(_SEED)
        self._block = torch.randn(self._BLOCK, DIM, generator=generator) / DIM

    def keys(self) -> Iterable[str]:
        return self._rows.keys()

    def shape(self, key: str) -> tuple[int, ...]:
        return self._rows[key], DIM

    def read(self, key: str, start: int, stop: int) -> Tensor:
        first = self._starts[key]
        return self._block[torch.arange(first + start, first + stop) % self._BLOCK]
