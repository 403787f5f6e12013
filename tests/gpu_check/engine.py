"""The engine on a card: plans of several ranks against the host, then DLRM-v2 whole.

DLRM-v2 has random rows, all of them where the card can hold them. Offline and server are MLPerf
Inference's scenarios, in this process, from requests that are decoded to scores on the host.
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kernels.device_reference import ReferenceLookup
from kernels.device_rows import device_stride
from kernels.row_format import RowFormat
from serving.bench.device_scenarios import run_offline, run_server
from serving.bench.dlrm_v2_shape import DENSE_WIDTH, IDS_OF_A_BAG, ROWS
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.device.buckets import bucket_of, device_buckets
from sharded_infer.device.cuda_runtime import CudaRuntime
from sharded_infer.device.device_choice import DeviceChoice
from sharded_infer.device.device_engine import ids_of_a_sample
from sharded_infer.device.device_tower import DeviceTower
from sharded_infer.device.engine_memory import EngineShape, Towers
from sharded_infer.device.engine_set import Backends, EngineSet
from sharded_infer.device.input_writer import InputWriter
from sharded_infer.device.rank_tables import PlacedShard, allocate_ranks
from sharded_infer.device.rehearsal_runtime import RehearsalRuntime
from sharded_infer.device.triton_kernel import TritonKernel
from sharded_infer.golden import generate_samples
from sharded_infer.merge import merge_inputs
from sharded_infer.model import open_model
from sharded_infer.plan import Plan, Shard, StoredTable
from sharded_infer.precision import Precision
from sharded_infer.publication import publish
from sharded_infer.spec import DenseSpec, GateSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.statistics import FeatureStatistics
from sharded_infer.topology import parse_topology
from tests.gpu_check.timing import seconds_of
from tests.gpu_check.towers import DLRM_V2, TINY, Sizes, placed_tower, spread_tower

# Ranks on one card, tables split by rows and columns, a rank in pinned memory.
_TOPOLOGIES = ("h100:1", "h100:2", "h100:3x0.7KB", "h100:1x0.7KB+host:1")
_ALLOWED_DIFF = 1e-4
_CLIENTS = 6
_TABLES_SHARE = 0.85  # of a card's free memory
_FILLED_ROWS = 4_000_000  # at once
_SERVER_SHARES = (0.5, 0.7, 0.9)
_MOST_P99_MS = 60.0
_TARGETS = {"offline_samples_per_second": 20_000.0, "overhead_seconds": 30e-6}


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """How much to run.

    Attributes:
        max_rows: larger tables are cut to so many.
        pairs: samples of a request.
        merged: requests of a batch, each measured offline.
        requests: drawn.
        seconds: of each scenario.
        precisions: of the tower.
        tower: its sizes.
    """

    max_rows: int
    pairs: int
    merged: tuple[int, ...]
    requests: int
    seconds: float
    precisions: tuple[Precision, ...]
    tower: Sizes


USUAL = EngineSizes(40_000_000, 270, (1, 4, 8), 64, 3.0, (Precision.TF32, Precision.BF16), DLRM_V2)
TINY_ENGINE = EngineSizes(40, 3, (1, 2), 4, 0.2, (Precision.FP32,), TINY)


def check_plans(device: torch.device) -> dict[str, object]:
    """Executes plans of several ranks on one card, and compares the scores with the host's.

    Args:
        device: a card, or a CPU, which plays the cards.

    Returns:
        The largest differences by plan, and failures.
    """
    differences: dict[str, float] = {}
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        path = publish(*_small_model(), Path(folder), topologies=_TOPOLOGIES).path
        host = open_model(path)
        for topology in _TOPOLOGIES:
            kinds = [one.kind for one in parse_topology(topology).devices]
            ranks = kinds.count("cuda")
            choice = DeviceChoice((0,) * ranks, device.type == "cpu", max_batch=64)
            try:
                model = open_model(path, topology=topology, devices=choice)
                differences[topology] = _largest_difference(model.engine.run, host.engine.run, host)
                if not differences[topology] <= _ALLOWED_DIFF:
                    failures.append(f"plan {topology}: a score is off by {differences[topology]}")
                del model
            except Exception as error:  # the others are checked all the same
                failures.append(f"plan {topology}: {type(error).__name__}: {error}")
    return {"max_score_diff": differences, "failures": failures}


def measure_engine(
    sizes: EngineSizes, device: torch.device, seed: int, has_time: Callable[[], bool]
) -> dict[str, object]:
    """Measures DLRM-v2 from decoded requests to scores.

    Args:
        sizes: how much.
        device: a card, or a CPU, which plays it.
        seed: of rows, weights and requests.
        has_time: whether to go on; what was not measured is said.

    Returns:
        Figures by precision, memory foretold and taken, what was left out, and failures.
    """
    is_card = device.type == "cuda"
    backends = Backends(
        CudaRuntime() if is_card else RehearsalRuntime(),
        TritonKernel if is_card else lambda tables, _device, _usual_ids: ReferenceLookup(tables),
        "triton" if is_card else "rehearsed",
    )
    free_before = backends.runtime.free(device)
    spec = _dlrm(sizes, free_before)
    placed = _random_tables(spec, device, backends, seed)
    requests = _requests(spec, sizes, seed)
    measured: list[dict[str, object]] = []
    left_out: list[str] = []
    failures: list[str] = []
    for precision in sizes.precisions:
        if not has_time():
            left_out.append(f"engine, {precision}")
            continue
        try:
            engines = _engines(spec, sizes, placed, device, precision, backends)
            found = _measured(engines, sizes, requests, device)
            memory = engines.memory[device]
            free = backends.runtime.free(device)
            taken = None if free is None or free_before is None else free_before - free
            measured.append(
                {
                    "precision": str(precision),
                    **found,
                    "foretold_bytes": memory.total,
                    "taken_bytes": taken,
                    "memory": asdict(memory),
                }
            )
            if is_card:
                failures += _judged(measured[-1])
            del engines
        except Exception as error:  # the others are measured all the same
            failures.append(f"engine, {precision}: {type(error).__name__}: {error}")
    rows = sum(table.rows for table in spec.tables)
    return {"rows": rows, "measured": measured, "left_out": left_out, "failures": failures}


def _judged(found: Mapping[str, Any]) -> list[str]:
    name = f"engine, {found['precision']}"
    failures = []
    best = max(line["samples_per_second"] for line in found["offline"])
    if best < _TARGETS["offline_samples_per_second"]:
        failures.append(f"{name}: {best:.0f} samples/s offline, expected 20,000")
    if found["overhead_seconds"] > _TARGETS["overhead_seconds"]:
        failures.append(f"{name}: {found['overhead_seconds'] * 1e6:.0f} us a batch, expected 30")
    if not 0.95 <= found["taken_bytes"] / found["foretold_bytes"] <= 1.05:
        failures.append(
            f"{name}: {found['taken_bytes']} bytes taken, foretold {found['foretold_bytes']}"
        )
    return failures


def _small_model() -> tuple[ModelSpec, dict[str, Tensor], nn.Module]:
    spec = ModelSpec(
        name="small",
        tables=(
            TableSpec("ads", 50, 8, features=("shown", "clicked")),
            TableSpec("user", 37, 12, pooling="mean", format=RowFormat.BF16),
            TableSpec("page", 41, 4, pooling="mean", format=RowFormat.INT4, out_of_range="ignore"),
        ),
        dense=DenseSpec({"dense": 5}),
        tower=TowerSpec(outputs=("score",)),
        gate=GateSpec(max_score_diff=1.0),
    )
    generator = torch.Generator().manual_seed(3)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in spec.tables}
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return spec, weights, _SmallTower(5 + spec.embedding_width)


class _SmallTower(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 16)
        self.score = nn.Linear(16, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        hidden = torch.relu(self.hidden(torch.cat([dense, embeddings], dim=1)))
        score: Tensor = self.score(hidden).squeeze(1)
        return score


def _largest_difference(there: Any, here: Any, host: Any) -> float:
    """Of scores of batches of many sizes, several at once, some with shared bags or weights."""
    batches = [_checked(generate_samples(host.spec, size)) for size in (1, 2, 7, 31, 64, 100)]
    batches += [_shared(batch) for batch in batches if batch.batch_size > 1]
    batches += [_weighted(batch) for batch in batches]
    expected = [here(batch).scores for batch in batches]
    with ThreadPoolExecutor(_CLIENTS) as pool:
        found = [one.scores for one in pool.map(there, batches * 3)]
    return max(
        float(np.abs(some - other).max())
        for mine, theirs in zip(found, expected * 3, strict=True)
        for some, other in zip(mine, theirs, strict=True)
    )


def _checked(batch: ModelInput) -> ModelInput:
    return ModelInput(batch.batch_size, batch.groups, batch.dense, ids_checked=True)


def _shared(batch: ModelInput) -> ModelInput:
    """The batch with the first sample's bags of the last features for all samples."""
    [group] = batch.groups
    count = len(group.features)
    own, shared = group.select(range(count - 2)), group.select((count - 2, count - 1))
    ends = np.cumsum(shared.lengths.sum(axis=1))
    starts = [0, int(ends[0])]
    firsts = shared.lengths[:, :1]
    values = [
        shared.values[start : start + n]
        for start, n in zip(starts, firsts[:, 0].tolist(), strict=True)
    ]
    one = JaggedBatch(shared.features, np.concatenate(values), firsts)
    return ModelInput(batch.batch_size, (own, one), batch.dense, ids_checked=True)


def _weighted(batch: ModelInput) -> ModelInput:
    generator = np.random.default_rng(batch.batch_size)
    groups = tuple(
        JaggedBatch(
            group.features,
            group.values,
            group.lengths,
            generator.standard_normal(len(group.values), np.float32),
        )
        for group in batch.groups
    )
    return ModelInput(batch.batch_size, groups, batch.dense, ids_checked=True)


def _dlrm(sizes: EngineSizes, free_bytes: int | None) -> ModelSpec:
    """DLRM-v2, its tables cut further where the card cannot hold them."""
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


def _random_tables(
    spec: ModelSpec, device: torch.device, backends: Backends, seed: int
) -> list[PlacedShard]:
    """All tables whole on the device, with random int8 rows between -1 and 1."""
    stored = {t.name: StoredTable(t.name, t.rows, t.dim, RowFormat.INT8) for t in spec.tables}
    shards = tuple(Shard(t.name, 0, 0, t.rows, 0, t.dim) for t in spec.tables)
    plan = Plan(parse_topology("cuda:1"), shards)
    placed = allocate_ranks(plan, stored, [device], backends.runtime)
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


def _requests(spec: ModelSpec, sizes: EngineSizes, seed: int) -> list[ModelInput]:
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


def _engines(
    spec: ModelSpec,
    sizes: EngineSizes,
    placed: Sequence[PlacedShard],
    device: torch.device,
    precision: Precision,
    backends: Backends,
) -> EngineSet:
    module = spread_tower(sizes.tower)

    def tower(home: torch.device) -> DeviceTower:
        return placed_tower(module, sizes.tower, precision, backends.runtime.tensors_of(home))

    largest = max(sizes.merged) * sizes.pairs
    return EngineSet(
        spec,
        placed,
        [device],
        Towers(tower, (None,), lambda one, batch: (one.memory_bytes, one.activation_bytes(batch))),
        shape=EngineShape(device_buckets(largest), ids=largest * ids_of_a_sample(spec)),
        backends=backends,
    )


def _measured(
    engines: EngineSet,
    sizes: EngineSizes,
    requests: Sequence[ModelInput],
    device: torch.device,
) -> dict[str, Any]:
    [engine] = engines.engines
    threads = engine.shape.slots + 1
    batches = {
        count: [
            merge_inputs([requests[(first + i) % len(requests)] for i in range(count)])
            for first in range(0, len(requests), count)
        ]
        for count in sizes.merged
    }
    offline = [
        {
            "batch": count * sizes.pairs,
            "samples_per_second": run_offline(
                engines.run, of_size, threads=threads, seconds=sizes.seconds
            ),
        }
        for count, of_size in batches.items()
    ]
    stages = {
        str(count * sizes.pairs): _stages(engine, of_size, device, sizes.tower.dim)
        for count, of_size in batches.items()
    }
    first = offline[0]
    spent = first["batch"] / first["samples_per_second"]
    best = max(line["samples_per_second"] for line in offline)
    server = [
        asdict(
            run_server(
                engines.run,
                requests,
                rate=share * best / sizes.pairs,
                seconds=sizes.seconds,
                threads=threads,
                max_batch=max(sizes.merged) * sizes.pairs,
            )
        )
        for share in _SERVER_SHARES
    ]
    return {
        "offline": offline,
        "stages": stages,
        # From one replay to the next, beyond the replay itself.
        "overhead_seconds": max(0.0, spent - stages[str(first["batch"])]["replay_seconds"]),
        "server": server,
        "server_within_60_ms": max(
            (
                line["offered_per_second"] * sizes.pairs
                for line in server
                if line["latency_ms"]["p99"] <= _MOST_P99_MS
            ),
            default=0.0,
        ),
    }


def _stages(
    engine: Any, batches: Sequence[ModelInput], device: torch.device, dim: int
) -> dict[str, float]:
    """Seconds of each stage of a batch by itself, the host's and the device's."""
    memory, runtime = engine.memory, engine.memory.runtime
    size = batches[0].batch_size
    bucket = bucket_of(size, engine.shape.buckets) or size
    slot = engine._free.get()
    try:
        [site] = memory.sites
        arrays = memory.host_arrays(slot, 0, bucket)
        writing = _written(site.writer, batches, arrays, bucket)
        ids = site.writer.write(batches[0], arrays, bucket)
        end = arrays.views.values_begin + ids * site.shape.id_dtype.itemsize
        runtime.copy(site.copies, slot.inputs[0], slot.pinned[0])
        runtime.record(slot.done, site.copies)
        runtime.synchronize(slot.done)
        inputs = memory.inputs(slot, 0, bucket)
        pooled = torch.zeros(bucket, memory.parts.width, device=site.tensors)

        def copy() -> None:
            slot.inputs[0][:end].copy_(slot.pinned[0][:end], non_blocking=True)

        def look_up() -> None:
            site.lookups.pool(inputs.values, inputs.offsets, pooled=pooled, part=None)

        def score() -> None:
            memory.parts.tower(inputs.dense, pooled)

        replay = slot.graphs[0, bucket, False]
        home = torch.device("cpu") if device.type == "cpu" else device
        return {
            "write_seconds": writing,
            "copy_seconds": seconds_of([copy], home, graph=False),
            "copy_bytes": end,
            "lookup_seconds": seconds_of([look_up], home),
            "row_bytes": ids * RowFormat.INT8.row_bytes(dim),
            "tower_seconds": seconds_of([score], home),
            "replay_seconds": seconds_of([replay], home, graph=False),
        }
    finally:
        engine._free.put(slot)


def _written(writer: InputWriter, batches: Sequence[ModelInput], arrays: Any, bucket: int) -> float:
    times = []
    for batch in batches:
        began = perf_counter()
        writer.write(batch, arrays, bucket)
        times.append(perf_counter() - began)
    return statistics.median(times)
