"""`bench engine --device`: DLRM-v2 on GPUs, from decoded requests to scores."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from serving.bench.parts.device_scenarios import ServerFigures, run_offline, run_server
from serving.bench.workloads.workload import Workload
from serving.commands.bench.report import TEXT, Report
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.byte_sizes import three_digits
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.device.device_engine import DeviceEngine
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import PlanError
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

# MLPerf Inference's bound for the server scenario of DLRM-v2.
P99_MS = 60.0
_WITHIN = f"server_pairs_per_second_within_{P99_MS:g}_ms"
_REQUESTS = 64
_MERGED = (1, 2, 4, 8)  # requests of a batch, offline
_SHARES = (0.5, 0.7, 0.8, 0.9, 0.95)  # of the best offline rate
# For a tower's device: batches in flight, and one that is merged meanwhile.
_THREADS = 3


class BenchDevice(StrEnum):
    """Device of the engine."""

    CPU = "cpu"
    CUDA = "cuda"
    SIMULATED = "simulated"


def bench_on_devices(
    workload: Workload,
    choice: DeviceChoice,
    *,
    device: BenchDevice,
    topology: str,
    precisions: Sequence[Precision],
    pairs: int,
    seconds: float,
    progress: Progress,
) -> Report:
    """Measure both scenarios for each precision of the tower.

    Raises PlanError without a rank that is a GPU, or with too few GPUs, CapacityError if a device
    has too little memory, and InputError without a CUDA device.
    """
    choice = DeviceChoice(choice.gpus, choice.simulated, pairs * max(_MERGED))
    towers: dict[Precision, dict[str, Any]] = {}
    rows: list[tuple[object, ...]] = []
    notes = []
    for precision in dict.fromkeys(precisions):
        own = replace(workload, precision=precision)
        with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
            path = own.publish(Path(folder), progress, topologies=(topology,))
            model = open_model(path, devices=choice, verify=False, progress=progress)
            run = towers[precision] = _measure(own, model, pairs, seconds, progress)
        for batch, rate in run["offline_pairs_per_second"].items():
            rows.append((precision, "offline", batch, rate, None, None, None))
        for one in run["server"]:
            name = f"server, {one['offered_per_second'] * pairs:,.0f} offered"
            percentiles = (one["latency_ms"][key] for key in ("p50", "p95", "p99"))
            rate = one["answered_per_second"] * pairs
            rows.append((precision, name, one["mean_batch"], rate, *percentiles))
        notes += [
            f"{precision}: {run[_WITHIN]:,.0f} pairs/s offered within {P99_MS:g} ms at p99; golden "
            f"requests within {run['golden_diff']:.2g} of fp32",
            *(f"  {line}" for line in run["memory"]),
        ]
    notes.append(
        f"\n{workload.name}, tables cut to {max(workload.rows):,} rows, {workload.distribution} "
        f"ids, {pairs} pairs a request, planned for {topology}, {device}; from decoded requests to "
        "scores"
    )
    return Report(
        [
            ("tower", TEXT), ("scenario", TEXT), ("batch", ",.0f"), ("pairs/s", ",.0f"),
            *((heading, three_digits) for heading in ("p50 ms", "p95", "p99")),
        ],
        rows,
        notes,
        {
            "workload": workload.name,
            "device": device,
            "topology": topology,
            "max_rows": max(workload.rows),
            "ids": workload.distribution,
            "pairs": pairs,
            "towers": towers,
        },
    )  # fmt: skip


def _measure(
    workload: Workload, model: Model, pairs: int, seconds: float, progress: Progress
) -> dict[str, Any]:
    """Samples a second by batch size, and figures of a server at shares of the best of these."""
    if not isinstance(model.engine, DeviceEngine):
        raise PlanError(f"topology {model.plan.topology.name!r}: expected a rank that is a GPU")
    engines = model.engine.set
    threads = _THREADS * len(engines.engines)
    reader = InputReader(model.spec, max_batch=pairs)
    requests = [reader.read_message(one) for one in workload.messages(pairs, _REQUESTS)]
    steps = len(_MERGED) + len(_SHARES)
    offline: dict[int, float] = {}
    for count in _MERGED:
        batches = [merge_inputs(requests[n : n + count]) for n in range(0, _REQUESTS, count)]
        offline[count * pairs] = run_offline(engines.run, batches, threads=threads, seconds=seconds)
        progress("measuring", len(offline), steps)
    server: list[ServerFigures] = []
    for share in _SHARES:
        figures = run_server(
            engines.run,
            requests,
            rate=share * max(offline.values()) / pairs,
            seconds=seconds,
            threads=threads,
            max_batch=pairs * max(_MERGED),
        )
        server.append(figures)
        progress("measuring", len(offline) + len(server), steps)
    rates = (one.offered_per_second * pairs for one in server if one.latency_ms["p99"] <= P99_MS)
    return {
        "offline_pairs_per_second": offline,
        "server": [asdict(figures) for figures in server],
        "memory": model.engine.memory_report(),
        "golden_diff": check_golden(model),
        _WITHIN: max(rates, default=0.0),
    }
