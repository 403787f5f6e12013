"""Cost of metrics: throughput with all metrics and with none, and the counting calls alone."""

import time
import timeit
from array import array
from typing import Annotated

import numpy as np
import typer

from benchmarks.servers.closed_loads import LoadCell, closed_loads
from serving.abi.counting import AnsweredCells, count_answered
from serving.bench.servers.serve import Loading
from serving.bench.servers.server_under_test import servers_of
from serving.bench.turns import Turns, medians
from serving.bench.workloads.named import workload_named
from serving.bench.workloads.workload import Workload
from serving.commands.bench.options import (
    AllPairsOption,
    RoundsOption,
    SecondsOption,
    TowerPrecision,
    WorkloadOption,
)
from serving.commands.bench.report import Report, bench_command, times
from serving.metrics.families.family import Detail
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.lookups.lookup_work import LookupWork
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

_REPEATS, _CALLS = 7, 2000


@bench_command
def metrics_command(
    progress: Progress,
    workload: WorkloadOption = "ranking",
    precision: TowerPrecision = Precision.BF16,
    pairs: AllPairsOption = None,
    rounds: RoundsOption = 15,
    seconds: SecondsOption = 4.0,
    concurrency: Annotated[int, typer.Option(help="Requests in flight.", min=1)] = 8,
) -> Report:
    """Measure throughput with all metrics and with none (`serve --metrics full` and `off`).

    Two servers share one core. A closed loop on another core loads them in turn, round by round.
    Requests have 16 pairs and 1 pair unless --pairs says otherwise. The output also has the time of
    the counting calls of one request, measured in a loop.
    """
    chosen = workload_named(workload, precision)
    options = {("metrics", d): [f"--metrics={d}", "--poll-seconds=0"] for d in ("full", "off")}
    with servers_of(chosen.publish, options) as servers:
        cells = closed_loads(
            servers,
            [(size, concurrency) for size in dict.fromkeys(pairs or [16, 1])],
            lambda _, size: Loading.of(chosen, size),
            Turns(rounds, seconds, progress),
        )
    by_size = [_rounds(full, off) for full, off in zip(cells[::2], cells[1::2], strict=True)]
    costs = [
        {
            **medians(of_size),
            "counting_us": 1e6 * counting_seconds(chosen, int(of_size[0]["pairs"])),
        }
        for of_size in by_size
    ]
    percent = times(100, ".2f")
    return Report(
        [
            ("pairs", ".0f"), ("full/s", ".0f"), ("off/s", ".0f"), ("cost %", percent),
            ("CPU ms full", ".4f"), ("CPU ms off", ".4f"), ("CPU cost %", percent),
            ("counting µs", ".2f"),
        ],
        [list(cost.values()) for cost in costs],
        [
            f"\n{workload}, {precision} tower, {rounds} rounds of {seconds:g} s, medians, "
            f"{concurrency} in flight, servers on one core"
        ],
        {
            "workload": workload,
            "precision": precision,
            "seconds": seconds,
            "concurrency": concurrency,
            "sizes": costs,
            "rounds": [one for of_size in by_size for one in of_size],
        },
    )  # fmt: skip


def _rounds(full: LoadCell, off: LoadCell) -> list[dict[str, float]]:
    """Both servers' requests a second and processor time of a request, and what counting costs."""
    return [
        {
            "pairs": full.pairs,
            "full": rate,
            "off": rate_off,
            "cost": 1.0 - rate / rate_off,
            "full_cpu_ms": cpu,
            "off_cpu_ms": cpu_off,
            "cpu_cost": 1.0 - cpu_off / cpu if cpu else 0.0,
        }
        for rate, rate_off, cpu, cpu_off in zip(
            full.rounds, off.rounds, full.cpu_rounds, off.cpu_rounds, strict=True
        )
    ]


def counting_seconds(workload: Workload, pairs: int, detail: Detail = Detail.FULL) -> float:
    """Seconds of the counting calls of a request that is a batch by itself."""
    metrics = ServerMetrics(detail=detail)
    version = metrics.version("bench", 1)
    spec = workload.spec()
    features = tuple(feature.name for feature in spec.features)
    version.describe(VersionInfo(0.033, (1,), ("score",), features))
    model_input = generate_samples(spec, pairs)
    rows = sum(group.values.size for group in model_input.groups)
    scores = (np.full(pairs, 0.5, np.float32),)
    work = LookupWork([(0, rows, 68 * rows, 4e-4)], 0)
    # `AnsweredRequest` of native/base/counting.h.
    answered = array("d", (pairs, 1e-4, 0.0, 4e-4, 2e-3, 5e-5, 3e-3, 0))
    cells, counted_address = version.answered_cells
    counted = AnsweredCells.from_address(counted_address)

    def count() -> None:
        metrics.in_flight(1)
        with version.lock:
            count_answered(cells, counted, answered.buffer_info()[0], 1, time.time())
        version.answered(samples=pairs, decode=1e-4, infer=2.4e-3, encode=5e-5)
        if version.lookups is not None:
            version.lookups.looked_up(work, model_input, scores)
        version.ran_batch(requests=1, samples=pairs, seconds=2.5e-3, predicted=2.4e-3)
        version.queue(requests=0, samples=0)
        metrics.in_flight(-1)

    # Processor time: other programs on this core do not count.
    timer = time.thread_time
    return min(timeit.repeat(count, timer=timer, number=_CALLS, repeat=_REPEATS)) / _CALLS
