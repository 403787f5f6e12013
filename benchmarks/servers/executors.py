"""Executors beside each other and a bare echo server: each on one core, the load on another."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from enum import StrEnum
from itertools import product
from typing import Annotated

import typer

from benchmarks.servers.closed_loads import closed_loads
from benchmarks.servers.echo_server import echoing
from benchmarks.servers.open_loads import measure_overloads, measure_queueing
from benchmarks.servers.scheduling import measure_scheduling
from serving.bench.servers.serve import Loading
from serving.bench.servers.server_under_test import servers_of
from serving.bench.turns import Turns
from serving.bench.workloads.named import workload_named
from serving.bench.workloads.workload import Workload
from serving.commands.bench.options import (
    RoundsOption,
    SecondsOption,
    TowerPrecision,
    WorkloadOption,
)
from serving.commands.bench.report import Report, bench_command
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

MODES = ("inline", "batched", "auto")
ECHO = "echo"
_ECHO_RESPONSE_BYTES = 100


class Part(StrEnum):
    """Parts of the benchmark."""

    MATRIX = "matrix"
    ARRIVALS = "arrivals"
    OVERLOAD = "overload"
    SCHEDULER = "scheduler"


@bench_command
def executors_command(
    progress: Progress,
    part: Annotated[
        Part,
        typer.Argument(
            help="matrix: all executors and an echo server in closed loops; arrivals: Poisson "
            "and constant arrivals beside a simulated queue; overload: several times the "
            "capacity; scheduler: processor time of its decisions, without a server."
        ),
    ] = Part.MATRIX,
    workload: WorkloadOption = "ranking",
    precision: TowerPrecision = Precision.BF16,
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
    rounds: RoundsOption = 3,
    seconds: SecondsOption = 3.0,
    share: Annotated[
        float, typer.Option(help="arrivals: load as a share of the capacity.", min=0.01)
    ] = 0.7,
    times: Annotated[
        float, typer.Option(help="overload: load as a multiple of the capacity.", min=0.1)
    ] = 3.0,
    deadline_ms: Annotated[
        float, typer.Option(help="overload: deadline of each request, milliseconds.", min=0.1)
    ] = 100.0,
) -> Report:
    """Measure the executors inline, batched and auto beside each other and a bare echo server.

    Servers run on one core, and the load on another if there is one. Rounds alternate.
    """
    if part is Part.SCHEDULER:
        return measure_scheduling(concurrency or [1, 16, 256, 2000], rounds, progress)
    turns = Turns(rounds, seconds, progress)
    chosen = workload_named(workload, precision)
    sizes = pairs or [1, 16, 270]
    if part is Part.MATRIX:
        report = _matrix(chosen, sizes, concurrency or [1, 16], turns)
    elif part is Part.ARRIVALS:
        report = measure_queueing(chosen, sizes[-1], share, turns)
    else:
        report = measure_overloads(
            chosen,
            sizes=pairs or [270, 1],
            times=times,
            deadline_seconds=deadline_ms / 1e3,
            seconds=seconds,
        )
    note = f"{workload}, {precision} tower, server on one core, load on another"
    return replace(report, notes=[*report.notes, note])


def _matrix(
    workload: Workload,
    pairs: Sequence[int],
    concurrencies: Sequence[int],
    turns: Turns,
) -> Report:
    options = {("executor", mode): [f"--executor={mode}"] for mode in MODES}
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(workload.publish, options))
        servers[ECHO, ECHO] = stack.enter_context(echoing(_ECHO_RESPONSE_BYTES))
        cells = closed_loads(
            servers,
            product(pairs, concurrencies),
            lambda _, size: Loading.of(workload, size),
            turns,
        )
    rows = []
    for number in range(0, len(cells), len(servers)):
        of_load = cells[number : number + len(servers)]
        inline, batched, auto, echoed = rates = [one.requests_per_second for one in of_load]
        over = auto / max(inline, batched), auto / inline, auto / echoed
        first, _, last, _ = of_load
        p99 = first.p99_ms, last.p99_ms
        rows.append((first.pairs, first.concurrency, *rates, *over, last.mean_batch, *p99))
    return Report(
        [
            ("pairs", "d"), ("in flight", "d"),
            *((mode, ",.0f") for mode in (*MODES, ECHO)),
            ("auto/better", ".2f"), ("auto/inline", ".2f"), ("auto/echo", ".2f"),
            ("requests a batch", ".3g"), ("p99 ms inline", ".3g"), ("auto", ".3g"),
        ],
        rows,
        ["requests a second"],
        [asdict(cell) for cell in cells],
    )  # fmt: skip
