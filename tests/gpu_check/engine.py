"""The whole DLRM-v2 on a GPU.

It has random rows, all of them if the GPU's memory suffices. Offline and server are MLPerf
Inference's scenarios, in this process, from decoded requests to scores on the host.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from kernels.gpu.reference_lookup import ReferenceLookup
from kernels.row_format import RowFormat
from serving.bench.parts.device_scenarios import run_offline, run_server
from sharded_infer.engines.device.backends import triton_lookup
from sharded_infer.engines.device.batch_memory import BatchKind, EngineShape
from sharded_infer.engines.device.buckets import bucket_of
from sharded_infer.engines.device.engine_set import Backends, EngineSet
from sharded_infer.engines.device.input_writer import InputWriter
from sharded_infer.engines.device.rank_tables import PlacedShard
from sharded_infer.engines.device.runtime.cuda_runtime import CudaRuntime
from sharded_infer.engines.device.runtime.simulated_runtime import SimulatedRuntime
from sharded_infer.engines.device.tower.device_tower import DeviceTower
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.precision import Precision
from tests.gpu_check.dlrm_v2 import (
    TINY_ENGINE,
    USUAL,
    EngineSizes,
    dlrm,
    engine_shape,
    merged_batches,
    random_requests,
    random_tables,
)
from tests.gpu_check.host_part import host_seconds
from tests.gpu_check.stage import Report, Stage
from tests.gpu_check.summary import MEMORY_ERROR, MOST_OVERHEAD
from tests.gpu_check.timing import captured, seconds_after, seconds_of
from tests.gpu_check.towers import Sizes, placed_tower, spread_tower

_SERVER_SHARES = (0.5, 0.7, 0.9)
_MOST_P99_MS = 60.0
# MLPerf's samples are requests of 270 pairs on average.
_LEAST_PAIRS_PER_SECOND = 20_000 * 270


def run(stage: Stage) -> Report:
    """Measure DLRM-v2 from decoded requests to scores, by precision, on a GPU or simulated one.

    Saves and returns figures, memory estimated and taken, what was left out, and failures.
    """
    is_gpu, sizes = not stage.is_dry, TINY_ENGINE if stage.is_dry else USUAL
    device = torch.device("cuda", 0) if is_gpu else stage.device
    backends = Backends(
        CudaRuntime() if is_gpu else SimulatedRuntime(),
        triton_lookup if is_gpu else lambda tables, _device, _usual_ids: ReferenceLookup(tables),
        "triton" if is_gpu else "simulated",
    )
    backends.runtime.release_cached(device)
    free_before = backends.runtime.free(device)
    spec = dlrm(sizes, free_before)
    shape = engine_shape(spec, sizes)
    placed = random_tables(spec, device, backends.runtime, stage.seed)
    requests = random_requests(spec, sizes, stage.seed)
    batches = merged_batches(sizes, requests)
    measured: list[dict[str, Any]] = []
    left_out: list[str] = []
    failures: list[str] = []
    for precision in sizes.precisions:
        if not stage.has_time():
            left_out.append(f"engine, {precision}")
            continue
        engines: EngineSet | None = None
        try:
            engines = _engines(spec, shape, sizes.tower, placed, device, precision, backends)
            found = _measured(engines, sizes, requests, batches, device)
            memory = engines.memory[device]
            backends.runtime.release_cached(device)
            free = backends.runtime.free(device)
            taken = None if free is None or free_before is None else free_before - free
            # Only now: it takes memory too.
            firsts = [of_size[0] for of_size in batches.values()]
            host = host_seconds(spec, shape, firsts, device, backends.runtime)
            found |= _beside_the_host(found, host)
            if precision is sizes.precisions[-1]:
                # More batches in flight may hide the host, and lookups run beside towers.
                others = {f"{n} batches in flight": replace(shape, slots=n) for n in sizes.slots}
                others["lookups beside towers"] = replace(shape, overlapped=True)
                found["offline_otherwise"] = {}
                for name, other in others.items():
                    made = _engines(spec, other, sizes.tower, placed, device, precision, backends)
                    found["offline_otherwise"][name] = _offline(made, batches, sizes)
                    del made
                    backends.runtime.release_cached(device)
            measured.append(
                {
                    "precision": str(precision),
                    **found,
                    "estimated_bytes": memory.total,
                    "taken_bytes": taken,
                    "memory": asdict(memory),
                }
            )
            stage.save({"measured": measured})
            if is_gpu:
                failures += _judged(measured[-1])
        except Exception as error:  # the others are measured all the same
            failures.append(f"engine, {precision}: {type(error).__name__}: {error}")
        finally:
            # Frees the memory before the next measurement of memory.
            del engines
    rates = [line["pairs_per_second"] for of in measured for line in of["offline"]]
    if is_gpu and max(rates, default=0.0) < _LEAST_PAIRS_PER_SECOND:
        failures.append(
            f"engine: {max(rates, default=0.0):,.0f} pairs/s offline, expected "
            f"{_LEAST_PAIRS_PER_SECOND:,}"
        )
    rows = sum(table.rows for table in spec.tables)
    return {"rows": rows, "measured": measured, "left_out": left_out, "failures": failures}


def _judged(found: Mapping[str, Any]) -> list[str]:
    name = f"engine, {found['precision']}"
    failures = []
    largest = max(found["replays"], key=lambda line: line["batch"])
    if largest["overhead_seconds"] > MOST_OVERHEAD * largest["replay_seconds"]:
        share = largest["overhead_seconds"] / largest["replay_seconds"]
        failures.append(
            f"{name}: a batch of {largest['batch']} takes {share:.0%} longer than its replay, "
            f"expected {MOST_OVERHEAD:.0%}"
        )
    if not abs(found["taken_bytes"] / found["estimated_bytes"] - 1) <= MEMORY_ERROR:
        failures.append(
            f"{name}: {found['taken_bytes']} bytes taken, estimated {found['estimated_bytes']}"
        )
    return failures


def _engines(
    spec: ModelSpec,
    shape: EngineShape,
    sizes: Sizes,
    placed: Sequence[PlacedShard],
    device: torch.device,
    precision: Precision,
    backends: Backends,
) -> EngineSet:
    module = spread_tower(sizes)

    def tower(home: torch.device) -> DeviceTower:
        return placed_tower(module, sizes, precision, backends.runtime.tensors_of(home))

    return EngineSet(
        spec,
        placed,
        [device],
        tower,
        shape=shape,
        backends=backends,
    )


def _measured(
    engines: EngineSet,
    sizes: EngineSizes,
    requests: Sequence[ModelInput],
    batches: Mapping[int, Sequence[ModelInput]],
    device: torch.device,
) -> dict[str, Any]:
    [engine] = engines.engines
    offline = _offline(engines, batches, sizes)
    stages = {
        str(count * sizes.pairs): _stages(engine, of_size, device, sizes.tower.dim)
        for count, of_size in batches.items()
    }
    best = max(line["pairs_per_second"] for line in offline)
    server = [
        asdict(
            run_server(
                engines.run,
                requests,
                rate=share * best / sizes.pairs,
                seconds=sizes.seconds,
                threads=engine.shape.slots + 1,
                max_batch=max(sizes.merged) * sizes.pairs,
            )
        )
        for share in _SERVER_SHARES
    ]
    return {
        "offline": offline,
        "stages": stages,
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


def _offline(
    engines: EngineSet, batches: Mapping[int, Sequence[ModelInput]], sizes: EngineSizes
) -> list[dict[str, Any]]:
    threads = engines.engines[0].shape.slots + 1
    return [
        {
            "batch": count * sizes.pairs,
            "pairs_per_second": run_offline(
                engines.run, of_size, threads=threads, seconds=sizes.seconds
            ),
        }
        for count, of_size in batches.items()
    ]


def _beside_the_host(
    found: Mapping[str, Any], host_seconds: Mapping[int, float]
) -> dict[str, object]:
    """Time between replays, by batch size, beyond that of a replay."""
    replays = []
    for line in found["offline"]:
        batch = line["batch"]
        replay = found["stages"][str(batch)]["replay_seconds"]
        replays.append(
            {
                "batch": batch,
                "replay_seconds": replay,
                "host_seconds": host_seconds[batch],
                "overhead_seconds": batch / line["pairs_per_second"] - replay,
            }
        )
    return {"replays": replays}


def _stages(
    engine: Any, batches: Sequence[ModelInput], device: torch.device, dim: int
) -> dict[str, float]:
    """Seconds of each stage of a batch; lookups and replays read other rows, against the cache."""
    memory, runtime = engine.memory, engine.memory.runtime
    size = batches[0].batch_size
    bucket = bucket_of(size, engine.shape.buckets)
    home = torch.device("cpu") if device.type == "cpu" else device
    slot = engine._free.get()
    try:
        [streams] = memory.all_streams
        views = memory.host_inputs(slot, 0, bucket)
        writing = _written(streams.writer, batches, views, bucket)

        def put(batch: ModelInput) -> int:
            ids: int = streams.writer.write(batch, views, bucket)
            end: int = views.values_begin + ids * streams.shape.id_dtype.itemsize
            runtime.copy(streams.copies, slot.inputs[0][:end], slot.pinned[0][:end])
            runtime.record(slot.done, streams.copies)
            runtime.synchronize(slot.done)
            return end

        end = put(batches[0])
        ids = int(views.offsets[-1])
        inputs = memory.inputs(slot, 0, bucket)
        pooled = torch.zeros(bucket, memory.parts.width, device=streams.tensors)

        def copy() -> None:
            slot.inputs[0][:end].copy_(slot.pinned[0][:end], non_blocking=True)

        def look_up() -> None:
            streams.lookups.pool(inputs.values, inputs.offsets, pooled=pooled, part=None)

        def score() -> None:
            memory.parts.tower(inputs.dense, pooled)

        lookup = look_up if home.type == "cpu" else captured(look_up, home)
        replay = slot.graphs[0, bucket, BatchKind()]
        puts = [partial(put, batch) for batch in batches]
        return {
            "write_seconds": writing,
            "copy_seconds": seconds_of([copy], home, graph=False),
            "copy_bytes": end,
            "lookup_seconds": seconds_after(puts, lookup, home),
            "row_bytes": ids * RowFormat.INT8.row_bytes(dim),
            "tower_seconds": seconds_of([score], home),
            "replay_seconds": seconds_after(puts, replay, home),
        }
    finally:
        engine._free.put(slot)


def _written(writer: InputWriter, batches: Sequence[ModelInput], views: Any, bucket: int) -> float:
    times = []
    for batch in batches:
        began = perf_counter()
        writer.write(batch, views, bucket)
        times.append(perf_counter() - began)
    return statistics.median(times)
