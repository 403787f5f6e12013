"""`bench engine --device`: the engine on GPUs."""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from serving.bench.parts.devices import measure_devices
from serving.bench.workloads.dlrm_v2 import DlrmV2
from serving.commands.bench.report import TEXT, Report
from sharded_infer.byte_sizes import three_digits
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

# MLPerf Inference's bound for the server scenario of DLRM-v2.
P99_MS = 60.0
_WITHIN = f"server_pairs_per_second_within_{P99_MS:g}_ms"


class BenchDevice(StrEnum):
    """Device of the engine."""

    CPU = "cpu"
    CUDA = "cuda"
    SIMULATED = "simulated"


def bench_on_devices(
    workload: DlrmV2,
    choice: DeviceChoice,
    *,
    device: BenchDevice,
    topology: str,
    precisions: Sequence[Precision],
    pairs: int,
    seconds: float,
    progress: Progress,
) -> Report:
    """Measure both scenarios."""
    found: dict[Precision, dict[str, Any]] = {}
    for precision in dict.fromkeys(precisions):
        found[precision] = measure_devices(
            replace(workload, precision=precision),
            choice,
            topology=topology,
            pairs=pairs,
            seconds=seconds,
            progress=progress,
        )
        rates = (
            one["offered_per_second"] * pairs
            for one in found[precision]["server"]
            if one["latency_ms"]["p99"] <= P99_MS
        )
        found[precision][_WITHIN] = max(rates, default=0.0)
    rows: list[tuple[object, ...]] = []
    notes = []
    for precision, run in found.items():
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
        f"\n{workload.name}, tables cut to {workload.max_rows:,} rows, {workload.ids} ids, "
        f"{pairs} pairs a request, planned for {topology}, {device}; from decoded requests to "
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
            "max_rows": workload.max_rows,
            "ids": workload.ids,
            "pairs": pairs,
            "towers": found,
        },
    )  # fmt: skip
