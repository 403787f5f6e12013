"""Measures the cost of metrics to a server."""

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.servers.metrics import MetricsCost, measure_metrics
from kernels.machine import machine
from serving.bench.workloads.workload import workload_named
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from sharded_infer.specs.precision import Precision


def metrics_command(
    workload: Annotated[
        str, typer.Option(help="Model and requests: ranking, ragged or dlrm-v2.")
    ] = "ranking",
    precision: TowerPrecision = Precision.BF16,
    pairs: Annotated[
        list[int] | None, typer.Option(help="Samples of a request; may be repeated.", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each size.", min=1)] = 15,
    seconds: Annotated[
        float, typer.Option(help="Seconds of load on each server in a round.", min=0.2)
    ] = 4.0,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 8,
    json_file: JsonFileOption = None,
) -> None:
    """Measure throughput with all metrics and with none (`serve --metrics full` and `off`).

    Two servers share one core. A closed loop on another core loads them in turn, round by round.
    Requests have 16 pairs and 1 pair unless --pairs says otherwise. The output also has the time of
    the counting calls of one request, measured in a loop.
    """
    check_target(json_file)
    with progress_bars() as progress:
        costs, found = measure_metrics(
            workload_named(workload).in_precision(precision),
            sizes=pairs or [16, 1],
            rounds=rounds,
            seconds=seconds,
            concurrency=concurrency,
            progress=progress,
        )
    _print(costs)
    OUT.print(
        f"\n{workload}, {precision} tower, {rounds} rounds of {seconds:g} s, medians, "
        f"{concurrency} in flight, one core of {os.cpu_count()}, {machine().class_text}",
        highlight=False,
        soft_wrap=True,
    )
    fields = {
        "workload": workload,
        "precision": precision,
        "seconds": seconds,
        "concurrency": concurrency,
        "sizes": [asdict(one) for one in costs],
        "rounds": [asdict(one) | {"cost": one.cost, "cpu_cost": one.cpu_cost} for one in found],
    }
    write_json(json_file, fields)


def _print(costs: list[MetricsCost]) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0))
    rates = ("pairs", "full/s", "off/s", "cost %")
    headings = (*rates, "CPU ms full", "CPU ms off", "CPU cost %", "counting µs")
    for heading in headings:
        table.add_column(heading, justify="right")
    for one in costs:
        table.add_row(
            str(one.pairs),
            f"{one.full:.0f}",
            f"{one.off:.0f}",
            f"{one.percent:.2f}",
            f"{one.full_cpu_ms:.4f}",
            f"{one.off_cpu_ms:.4f}",
            f"{one.cpu_percent:.2f}",
            f"{one.counting_us:.2f}",
        )
    OUT.print(table)
