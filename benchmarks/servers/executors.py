"""Executors beside each other and a bare echo server: each on one core, the load on another."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from enum import StrEnum
from itertools import product
from typing import Annotated

import typer

from benchmarks.servers.closed_loads import LoadCell, closed_loads
from benchmarks.servers.echo_server import echoing
from benchmarks.servers.overload import OverloadFigures, measure_overload
from benchmarks.servers.queueing import QueueFigures, measure_queueing
from benchmarks.servers.scheduling import SchedulingCost, measure_scheduling
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import Loading
from serving.bench.servers.server_under_test import servers_of
from serving.bench.workloads.workload import BenchModel, workload_named
from serving.commands.bench.report import TEXT, print_notes, print_table
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from sharded_infer.byte_sizes import size_text
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

MODES = ("inline", "batched", "auto")
ECHO = "echo"
_ECHO_RESPONSE_BYTES = 100


def measure_matrix(
    workload: BenchModel,
    *,
    pairs: Sequence[int],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[LoadCell]:
    """Measure every executor and an echo server under closed loads."""
    server_cpus, load_cpus = split_cpus()
    options = {("executor", mode): [f"--executor={mode}"] for mode in MODES}
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(workload.publish, options, server_cpus))
        echo = echoing(_ECHO_RESPONSE_BYTES, server_cpus)
        servers[ECHO, ECHO] = stack.enter_context(echo)
        return closed_loads(
            servers,
            product(pairs, concurrencies),
            lambda _, size: Loading.of(workload, size, load_cpus),
            rounds=rounds,
            seconds=seconds,
            progress=progress,
        )


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
            queues = measure_queueing(
                chosen,
                pairs=sizes[-1],
                share=share,
                rounds=rounds,
                seconds=seconds,
                progress=progress,
            )
        _print_queues(queues)
        fields = [asdict(one) for one in queues]
    else:
        loads = [
            measure_overload(
                chosen,
                pairs=size,
                times=times,
                deadline_seconds=deadline_ms / 1e3,
                seconds=seconds,
            )
            for size in (pairs or [270, 1])
        ]
        _print_overloads(loads)
        fields = [asdict(one) for one in loads]
    print_notes(f"{workload}, {precision} tower, server on one core, load on another")
    write_json(json_file, fields)


def _print_matrix(cells: list[LoadCell]) -> None:
    by_key = {(c.pairs, c.concurrency, c.variant): c for c in cells}
    rows = []
    for pairs, flying in dict.fromkeys(key[:2] for key in by_key):
        row = {mode: by_key[pairs, flying, mode] for mode in (*MODES, ECHO)}
        inline, batched, auto, echo = (cell.requests_per_second for cell in row.values())
        over = auto / max(inline, batched), auto / inline, auto / echo
        p99 = row["inline"].p99_ms, row["auto"].p99_ms
        rates = inline, batched, auto, echo
        rows.append((pairs, flying, *rates, *over, row["auto"].mean_batch, *p99))
    print_table(
        [
            ("pairs", "d"), ("in flight", "d"),
            *((mode, ",.0f") for mode in (*MODES, ECHO)),
            ("auto/better", ".2f"), ("auto/inline", ".2f"), ("auto/echo", ".2f"),
            ("requests a batch", ".3g"), ("p99 ms inline", ".3g"), ("auto", ".3g"),
        ],
        rows,
    )  # fmt: skip
    OUT.print("requests a second", highlight=False)


def _print_scheduling(costs: list[SchedulingCost]) -> None:
    names = ("deadlines alike", "different", "dispatcher's loop")
    print_table(
        [("waiting", "d"), *((name, ".2f") for name in names)],
        [(c.waiting, c.alike, c.different, c.dispatcher) for c in costs],
    )
    OUT.print("microseconds of processor time a request", highlight=False)


def _print_queues(queues: list[QueueFigures]) -> None:
    print_table(
        [
            ("executor", TEXT), ("arrivals", TEXT), ("requests/s", ",.0f"),
            ("p50 ms", ".3g"), ("p99", ".3g"), ("p99 of a queue", ".3g"), ("ratio", ".2f"),
        ],
        (
            (
                one.mode, one.distribution, one.rate, one.latency_ms["p50"],
                one.latency_ms["p99"], one.predicted_ms["p99"],
                one.latency_ms["p99"] / one.predicted_ms["p99"],
            )
            for one in queues
        ),
    )  # fmt: skip


def _print_overloads(loads: list[OverloadFigures]) -> None:
    print_table(
        [
            ("pairs", "d"), ("deadline ms", "g"), ("capacity/s", ",.0f"),
            ("offered/s", ",.0f"), ("in time/s", ",.0f"), ("of capacity", ".2f"),
            ("CPU ms an answer", ".3g"), ("a refusal", ".3g"), ("under load", ".3g"),
            ("memory before", size_text), ("after", size_text), ("p50 ms before", ".3g"),
            ("1 s after", ".3g"), ("lag p99 ms", ".3g"), ("errors", TEXT),
        ],
        (
            (
                one.pairs, one.deadline_ms, one.capacity, one.offered, one.goodput,
                one.goodput / one.capacity, one.answer_cpu_ms, one.refusal_cpu_ms,
                one.overload_refusal_cpu_ms, one.resident_before, one.resident_after,
                one.normal_p50_ms, one.recovered_p50_ms, one.generator_p99_lag_ms,
                ", ".join(f"{n:,} {code}" for code, n in one.errors.items()),
            )
            for one in loads
        ),
    )  # fmt: skip
