"""DLRM-v2 at some size: the model, its rows, requests and batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.gpu.row_stride import device_stride
from kernels.row_format import RowFormat
from serving.bench.workloads.dlrm_v2 import DENSE_WIDTH, IDS_OF_A_BAG, ROWS
from sharded_infer.engines.device.batch_memory import EngineShape
from sharded_infer.engines.device.buckets import device_buckets
from sharded_infer.engines.device.device_engine import ids_of_a_sample
from sharded_infer.engines.device.rank_tables import PlacedShard, allocate_ranks
from sharded_infer.engines.device.runtime.runtime import Runtime
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.planning.plan import Plan, Shard, StoredTable
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from tests.gpu_check.towers import DLRM_V2, TINY, Sizes

_TABLES_SHARE = 0.85  # of a GPU's free memory
_FILLED_ROWS = 4_000_000  # at once


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """Sizes of a run, with random requests of so many pairs, and seconds of each scenario.

    Larger tables are cut. Offline batches merge so many requests; slots are compared with the
    default.
    """

    max_rows: int
    pairs: int
    merged: tuple[int, ...]
    requests: int
    seconds: float
    precisions: tuple[Precision, ...]
    tower: Sizes
    slots: tuple[int, ...]


USUAL = EngineSizes(
    40_000_000, 270, (1, 8, 30), 60, 2.0, (Precision.TF32, Precision.BF16), DLRM_V2, (2, 6)
)
TINY_ENGINE = EngineSizes(40, 3, (1, 2), 4, 0.2, (Precision.FP32,), TINY, (2,))


def dlrm(sizes: EngineSizes, free_bytes: int | None) -> ModelSpec:
    """DLRM-v2, its tables cut further if the GPU's free bytes (None: unlimited) are too few."""
    shape, most = sizes.tower, sizes.max_rows
    names = [f"C{number}" for number in range(shape.features)]
    while True:
        rows = [min(count, most) for count in ROWS[: shape.features]]
        padded = device_stride(RowFormat.INT8.row_bytes(shape.dim))
        if free_bytes is None or sum(rows) * padded <= _TABLES_SHARE * free_bytes:
            break
        most //= 2
    return ModelSpec(
        name="dlrm-v2",
        tables=tuple(
            TableSpec(name, count, shape.dim) for name, count in zip(names, rows, strict=True)
        ),
        dense=DenseSpec({"dense": DENSE_WIDTH}),
        tower=TowerSpec(outputs=("score",)),
        statistics={
            name: FeatureStatistics(pooling_factor=float(length))
            for name, length in zip(names, IDS_OF_A_BAG, strict=False)
        },
    )


def empty_tables(spec: ModelSpec, device: torch.device, runtime: Runtime) -> list[PlacedShard]:
    """All tables whole on the device, with int8 rows of zeros."""
    stored = {t.name: StoredTable(t.name, t.rows, t.dim, RowFormat.INT8) for t in spec.tables}
    shards = tuple(Shard(t.name, 0, 0, t.rows, 0, t.dim) for t in spec.tables)
    return allocate_ranks(Plan(parse_topology("cuda:1"), shards), stored, [device], runtime)


def random_tables(
    spec: ModelSpec, device: torch.device, runtime: Runtime, seed: int
) -> list[PlacedShard]:
    """All tables whole on the device, with random int8 rows between -1 and 1."""
    placed = empty_tables(spec, device, runtime)
    memory = placed[0].memory
    generator = torch.Generator(memory.device).manual_seed(seed)
    header = torch.tensor([2 / 255, -1.0], dtype=torch.float16).view(torch.uint8)
    for shard in placed:
        end = shard.byte_offset + shard.rows * shard.row_stride
        lines = memory[shard.byte_offset : end].view(shard.rows, shard.row_stride)
        for first in range(0, shard.rows, _FILLED_ROWS):
            lines[first : first + _FILLED_ROWS].random_(0, 256, generator=generator)
        lines[:, : len(header)] = header.to(memory.device)
    return placed


def random_requests(spec: ModelSpec, sizes: EngineSizes, seed: int) -> list[ModelInput]:
    """Requests with uniform ids, as many of each feature as MLPerf's have."""
    generator = np.random.default_rng(seed)
    features = tuple(range(len(spec.features)))
    requests = []
    for _ in range(sizes.requests):
        ids, lengths = [], np.empty((len(features), sizes.pairs), np.int64)
        for row, (feature, length) in enumerate(zip(spec.features, IDS_OF_A_BAG, strict=False)):
            count = length * sizes.pairs
            ids.append(generator.integers(0, feature.table.rows, count))
            lengths[row] = length
        group = JaggedBatch(features, np.concatenate(ids), lengths)
        dense = tuple(
            generator.standard_normal((sizes.pairs, width), np.float32)
            for width in spec.dense.inputs.values()
        )
        requests.append(ModelInput(sizes.pairs, (group,), dense, ids_checked=True))
    return requests


def merged_batches(
    sizes: EngineSizes, requests: Sequence[ModelInput]
) -> dict[int, list[ModelInput]]:
    return {
        count: [
            merge_inputs([requests[(first + i) % len(requests)] for i in range(count)])
            for first in range(0, len(requests), count)
        ]
        for count in sizes.merged
    }


def engine_shape(spec: ModelSpec, sizes: EngineSizes) -> EngineShape:
    largest = max(sizes.merged) * sizes.pairs
    return EngineShape(device_buckets(largest), ids=largest * ids_of_a_sample(spec))
