"""`bench engine --device`: the engine on GPUs."""

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path

from serving.bench.parts.devices import DeviceRun, measure_devices
from serving.bench.workloads.dlrm_v2 import DlrmV2
from serving.commands.bench.report import TEXT, Form, print_table
from serving.commands.console import OUT, write_json
from serving.commands.progress_bars import progress_bars
from sharded_infer.byte_sizes import three_digits
from sharded_infer.engines.device.device_choice import DeviceChoice, parse_gpus
from sharded_infer.specs.precision import Precision

# MLPerf Inference's bound for the server scenario of DLRM-v2.
P99_MS = 60.0


class BenchDevice(StrEnum):
    """Device of the engine."""

    CPU = "cpu"
    CUDA = "cuda"
    SIMULATED = "simulated"


def bench_on_devices(
    workload: DlrmV2,
    *,
    device: BenchDevice,
    topology: str,
    gpus: str | None,
    precisions: Sequence[Precision],
    pairs: int,
    seconds: float,
    json_file: Path | None,
) -> None:
    """Measure and print both scenarios, by default in tf32 and bf16; `gpus` as `parse_gpus`."""
    choice = DeviceChoice(parse_gpus(gpus), device is BenchDevice.SIMULATED)
    with progress_bars() as progress:
        found = measure_devices(
            workload,
            precisions=list(dict.fromkeys(precisions)) or [Precision.TF32, Precision.BF16],
            topology=topology,
            choice=choice,
            pairs=pairs,
            seconds=seconds,
            progress=progress,
        )
    _print(found, pairs)
    OUT.print(
        f"\n{workload.name}, tables cut to {workload.max_rows:,} rows, {workload.ids} ids, "
        f"{pairs} pairs a request, planned for {topology}, {device}; from decoded requests to "
        "scores",
        highlight=False,
        soft_wrap=True,
    )
    fields = {
        "workload": workload.name,
        "device": device,
        "topology": topology,
        "max_rows": workload.max_rows,
        "ids": workload.ids,
        "pairs": pairs,
        "towers": {
            precision: {
                "offline_pairs_per_second": run.offline,
                "server": [asdict(one) for one in run.server],
                "server_pairs_per_second_within_60_ms": run.within(P99_MS, pairs),
                "memory": run.memory,
                "golden_diff": run.golden_diff,
            }
            for precision, run in found.items()
        },
    }
    write_json(json_file, fields)


def _print(found: dict[Precision, DeviceRun], pairs: int) -> None:
    columns: list[tuple[str, Form]] = [
        ("tower", TEXT), ("scenario", TEXT), ("batch", ",.0f"), ("pairs/s", ",.0f"),
        *((heading, three_digits) for heading in ("p50 ms", "p95", "p99")),
    ]  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for precision, run in found.items():
        for batch, rate in run.offline.items():
            rows.append((precision, "offline", batch, rate, None, None, None))
        for one in run.server:
            name = f"server, {one.offered_per_second * pairs:,.0f} offered"
            percentiles = (one.latency_ms[key] for key in ("p50", "p95", "p99"))
            rate = one.answered_per_second * pairs
            rows.append((precision, name, one.mean_batch, rate, *percentiles))
    print_table(columns, rows)
    for precision, run in found.items():
        within = run.within(P99_MS, pairs)
        lines = "\n  ".join(run.memory)
        OUT.print(
            f"{precision}: {within:,.0f} pairs/s offered within {P99_MS:g} ms at p99; golden "
            f"requests within {run.golden_diff:.2g} of fp32\n  {lines}",
            highlight=False,
            soft_wrap=True,
        )
