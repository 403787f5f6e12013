"""Measures the executors beside each other."""

import os
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.servers.executors import ECHO, MODES, Cell, measure_matrix
from benchmarks.servers.overload import OverloadFigures, measure_overload
from benchmarks.servers.queueing import QueueFigures, measure_queueing
from benchmarks.servers.scheduling import SchedulingCost, measure_scheduling
from kernels.machine import machine
from serving.bench.workloads.workload import workload_named
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from sharded_infer.byte_sizes import size_text
from sharded_infer.specs.precision import Precision


class Part(StrEnum):
    """Parts of the benchmark."""

    MATRIX = "matrix"
    ARRIVALS = "arrivals"
    OVERLOAD = "overload"
    SCHEDULER = "scheduler"


def executors_command(
    part: Annotated[
        Part,
        typer.Argument(
            help="matrix: all executors and an echo server in closed loops; arrivals: Poisson "
            "and constant arrivals beside a simulated queue; overload: several times the "
            "capacity; scheduler: processor time of its decisions, without a server."
        ),
    ] = Part.MATRIX,
    workload: Annotated[
        str,
        typer.Option(
            help="Model and requests: ranking (26 tables), ragged (100 inputs) or dlrm-v2 "
            "(MLPerf's, with tables cut to 2 million rows)."
        ),
    ] = "ranking",
    precision: TowerPrecision = Precision.BF16,
    transport: Annotated[
        list[str] | None, typer.Option(help="grpcio or native; may be repeated; default: both.")
    ] = None,
    pairs: Annotated[
        list[int] | None,
        typer.Option(help="Samples of a request; may be repeated; default: 1, 16 and 270.", min=1),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(
            help="Requests in flight; may be repeated; default: 1 and 16; of the scheduler: 1, 16, "
            "256 and 2000.",
            min=1,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Measurements of each; the medians are shown.", min=1)
    ] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.", min=0.2)] = 3.0,
    share: Annotated[
        float, typer.Option(help="arrivals: load as a share of the capacity.", min=0.01)
    ] = 0.7,
    times: Annotated[
        float, typer.Option(help="overload: load as a multiple of the capacity.", min=0.1)
    ] = 3.0,
    deadline_ms: Annotated[
        float, typer.Option(help="overload: deadline of each request, milliseconds.", min=0.1)
    ] = 100.0,
    json_file: JsonFileOption = None,
) -> None:
    """Measure the executors inline, batched and auto beside each other and a bare echo server.

    Servers run on one core, and the load on another if there is one. Rounds alternate.
    """
    check_target(json_file)
    chosen = workload_named(workload).in_precision(precision)
    transports = transport or ["grpcio", "native"]
    sizes = pairs or [1, 16, 270]
    if part is Part.SCHEDULER:
        with progress_bars() as progress:
            costs = measure_scheduling(
                waiting=concurrency or [1, 16, 256, 2000], rounds=rounds, progress=progress
            )
        _print_scheduling(costs)
        write_json(json_file, [asdict(one) for one in costs])
        return
    if part is Part.MATRIX:
        with progress_bars() as progress:
            cells = measure_matrix(
                chosen,
                transports=transports,
                pairs=sizes,
                concurrencies=concurrency or [1, 16],
                rounds=rounds,
                seconds=seconds,
                progress=progress,
            )
        _print_matrix(cells)
        fields: object = [asdict(cell) for cell in cells]
    elif part is Part.ARRIVALS:
        with progress_bars() as progress:
            queues = [
                (name, one)
                for name in transports
                for one in measure_queueing(
                    chosen,
                    transport=name,
                    pairs=sizes[-1],
                    share=share,
                    rounds=rounds,
                    seconds=seconds,
                    progress=progress,
                )
            ]
        _print_queues(queues)
        fields = [{"transport": name, **asdict(one)} for name, one in queues]
    else:
        loads = [
            (
                name,
                measure_overload(
                    chosen,
                    transport=name,
                    pairs=size,
                    times=times,
                    deadline_seconds=deadline_ms / 1e3,
                    seconds=seconds,
                ),
            )
            for name in transports
            for size in (pairs or [270, 1])
        ]
        _print_overloads(loads)
        fields = [{"transport": name, **asdict(one)} for name, one in loads]
    OUT.print(
        f"{workload}, {precision} tower, server on one core, load on another, of {os.cpu_count()}, "
        f"{machine().class_text}",
        highlight=False,
    )
    write_json(json_file, fields)


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    words = {"transport", "executor", "arrivals", "errors", "scheduler"}
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right")
    return table


def _print_matrix(cells: list[Cell]) -> None:
    table = _table(
        "transport", "pairs", "in flight", *MODES, "echo", "auto/better", "auto/inline",
        "auto/echo", "requests a batch", "p99 ms inline", "auto",
    )  # fmt: skip
    by_key = {(c.transport, c.pairs, c.concurrency, c.mode): c for c in cells}
    for transport, pairs, flying in dict.fromkeys(key[:3] for key in by_key):
        row = {mode: by_key[transport, pairs, flying, mode] for mode in (*MODES, ECHO)}
        rates = {mode: cell.requests_per_second for mode, cell in row.items()}
        table.add_row(
            transport,
            str(pairs),
            str(flying),
            *(f"{rates[mode]:,.0f}" for mode in (*MODES, ECHO)),
            f"{rates['auto'] / max(rates['inline'], rates['batched']):.2f}",
            f"{rates['auto'] / rates['inline']:.2f}",
            f"{rates['auto'] / rates[ECHO]:.2f}",
            f"{row['auto'].mean_batch:.3g}",
            f"{row['inline'].p99_ms:.3g}",
            f"{row['auto'].p99_ms:.3g}",
        )
    OUT.print(table)
    OUT.print("requests a second", highlight=False)


def _print_scheduling(costs: list[SchedulingCost]) -> None:
    table = _table("scheduler", "waiting", "deadlines alike", "different", "dispatcher's loop")
    for one in costs:
        times = (f"{seconds:.2f}" for seconds in (one.alike, one.different, one.dispatcher))
        table.add_row(one.scheduler, str(one.waiting), *times)
    OUT.print(table)
    OUT.print("microseconds of processor time a request", highlight=False)


def _print_queues(queues: list[tuple[str, QueueFigures]]) -> None:
    table = _table(
        "transport", "executor", "arrivals", "requests/s", "p50 ms", "p99", "p99 of a queue",
        "ratio",
    )  # fmt: skip
    for name, one in queues:
        table.add_row(
            name,
            one.mode,
            one.distribution,
            f"{one.rate:,.0f}",
            f"{one.latency_ms['p50']:.3g}",
            f"{one.latency_ms['p99']:.3g}",
            f"{one.predicted_ms['p99']:.3g}",
            f"{one.latency_ms['p99'] / one.predicted_ms['p99']:.2f}",
        )
    OUT.print(table)


def _print_overloads(loads: list[tuple[str, OverloadFigures]]) -> None:
    table = _table(
        "transport", "pairs", "deadline ms", "capacity/s", "offered/s", "in time/s", "of capacity",
        "CPU ms an answer", "a refusal", "under load", "memory before", "after",
        "p50 ms before", "1 s after", "lag p99 ms", "errors",
    )  # fmt: skip
    for name, one in loads:
        table.add_row(
            name,
            str(one.pairs),
            f"{one.deadline_ms:g}",
            f"{one.capacity:,.0f}",
            f"{one.offered:,.0f}",
            f"{one.goodput:,.0f}",
            f"{one.goodput / one.capacity:.2f}",
            f"{one.answer_cpu_ms:.3g}",
            f"{one.refusal_cpu_ms:.3g}",
            f"{one.overload_refusal_cpu_ms:.3g}",
            size_text(one.resident_before),
            size_text(one.resident_after),
            f"{one.normal_p50_ms:.3g}",
            f"{one.recovered_p50_ms:.3g}",
            f"{one.generator_p99_lag_ms:.3g}",
            ", ".join(f"{n:,} {code}" for code, n in one.errors.items()),
        )
    OUT.print(table)
