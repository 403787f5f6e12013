"""Measures a plan over several hosts."""

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.cluster.measurement import ONE_PROCESS, OURS, ClusterFigures, measure_cluster
from kernels.machine import machine
from kernels.wording import counted
from serving.bench.workloads.workload import workload_named
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from sharded_infer.byte_sizes import size_text, three_digits
from sharded_infer.specs.precision import Precision


def cluster_command(
    workload: Annotated[
        str, typer.Option(help="Model and requests: ranking, ragged or dlrm-v2.")
    ] = "ranking",
    precision: TowerPrecision = Precision.BF16,
    hosts: Annotated[int, typer.Option(help="Shard hosts.", min=1, max=64)] = 4,
    pairs: Annotated[
        list[int] | None, typer.Option(help="Samples of a request; may be repeated.", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each way.", min=1)] = 5,
    requests: Annotated[int, typer.Option(help="Requests of each turn.", min=1)] = 200,
    json_file: JsonFileOption = None,
) -> None:
    """Measure a plan over several hosts beside one process.

    Shard hosts are processes on this machine that share a core; the front is this process, on
    another one. The plain way is gRPC's own client with a call for each piece of a table. Requests
    have 1 pair and 270 unless --pairs says otherwise. Processor time is that of all processes.
    """
    check_target(json_file)
    with progress_bars() as progress:
        found = measure_cluster(
            workload_named(workload).in_precision(precision),
            hosts=hosts,
            sizes=pairs or [1, 270],
            rounds=rounds,
            requests=requests,
            progress=progress,
        )
    _print(found)
    OUT.print(
        f"\n{workload}, {precision} tower, {counted(hosts, 'shard host')}, {rounds} rounds of "
        f"{counted(requests, 'request')}, {os.cpu_count()} cores, {machine().class_text}. "
        "Medians, milliseconds.",
        highlight=False,
        soft_wrap=True,
    )
    fields = {"workload": workload, "precision": precision, "sizes": [asdict(f) for f in found]}
    write_json(json_file, fields)


def _print(found: list[ClusterFigures]) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("pairs", "lookups", "p50", "CPU", "added p50", "CPU ratio"):
        table.add_column(heading, justify="left" if heading == "lookups" else "right")
    for figures in found:
        whole = figures.times[ONE_PROCESS]
        for name, times in figures.times.items():
            table.add_row(
                str(figures.pairs),
                name,
                three_digits(times.p50_seconds * 1e3),
                three_digits(times.cpu_seconds * 1e3),
                three_digits((times.p50_seconds - whole.p50_seconds) * 1e3),
                f"{times.cpu_seconds / whole.cpu_seconds:.2f}",
            )
    OUT.print(table)
    for figures in found:
        OUT.print(
            f"{figures.pairs} pairs, {OURS}: {size_text(round(figures.wire_bytes))} of messages, "
            f"{figures.wire_bytes_ratio:.2f} times the least; bits "
            f"{'equal' if figures.bits_equal else 'DIFFER'}",
            highlight=False,
            soft_wrap=True,
        )
