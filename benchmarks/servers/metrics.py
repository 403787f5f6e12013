"""Cost of metrics: throughput with all metrics and with none, and the counting calls alone.

Two servers of one model share a core, one of them idle at any time. Each round loads them in turn,
in changing order, so that other work of the machine affects both alike.
"""

import time
import timeit
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

import numpy as np
import typer

from benchmarks.servers.closed_loads import measure_answered
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import Loading
from serving.bench.servers.server_under_test import servers_of
from serving.bench.workloads.workload import BenchModel, workload_named
from serving.commands.bench.report import print_notes, print_table
from serving.commands.console import check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from serving.metrics.families.family import Detail
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from serving.metrics.version_metrics import Answered
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.lookups.lookup_work import LookupWork
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

_REPEATS, _CALLS = 7, 2000


@dataclass(frozen=True, slots=True)
class MetricsRound:
    """Requests a second, and processor time of a request, with all metrics and with none."""

    pairs: int
    full: float
    off: float
    full_cpu_ms: float
    off_cpu_ms: float

    @property
    def cost(self) -> float:
        """Share of the throughput that counting takes."""
        return 1.0 - self.full / self.off

    @property
    def cpu_cost(self) -> float:
        """Share of a request's processor time that counting takes."""
        return 1.0 - self.off_cpu_ms / self.full_cpu_ms if self.full_cpu_ms else 0.0


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
        chosen = workload_named(workload).in_precision(precision)
        found = measure_metrics(
            chosen,
            sizes=pairs or [16, 1],
            rounds=rounds,
            seconds=seconds,
            concurrency=concurrency,
            progress=progress,
        )
    costs = [_summed_up(chosen, size, found) for size in dict.fromkeys(one.pairs for one in found)]
    print_table(
        [
            ("pairs", "d"), ("full/s", ".0f"), ("off/s", ".0f"), ("cost %", ".2f"),
            ("CPU ms full", ".4f"), ("CPU ms off", ".4f"), ("CPU cost %", ".2f"),
            ("counting µs", ".2f"),
        ],
        [list(cost.values()) for cost in costs],
    )  # fmt: skip
    print_notes(
        f"\n{workload}, {precision} tower, {rounds} rounds of {seconds:g} s, medians, "
        f"{concurrency} in flight, servers on one core"
    )
    fields = {
        "workload": workload,
        "precision": precision,
        "seconds": seconds,
        "concurrency": concurrency,
        "sizes": costs,
        "rounds": [asdict(one) | {"cost": one.cost, "cpu_cost": one.cpu_cost} for one in found],
    }
    write_json(json_file, fields)


def measure_metrics(
    workload: BenchModel,
    *,
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
    concurrency: int,
    progress: Progress,
) -> list[MetricsRound]:
    """Publish the model, and load a server with metrics and one without."""
    server_cpus, load_cpus = split_cpus()
    loadings = {pairs: Loading.of(workload, pairs, load_cpus) for pairs in sizes}
    options = {detail: [f"--metrics={detail}", "--poll-seconds=0"] for detail in ("full", "off")}
    found: list[MetricsRound] = []
    with servers_of(workload.publish, options, server_cpus) as servers:
        for number in range(rounds):
            for pairs, loading in loadings.items():
                by_detail = {
                    detail: measure_answered(
                        "the server",
                        servers[detail],
                        loading,
                        concurrency=concurrency,
                        seconds=seconds,
                    )
                    for detail in (servers if number % 2 == 0 else reversed(servers))
                }
                full, off = by_detail["full"], by_detail["off"]
                rates = full.requests_per_second, off.requests_per_second
                cpu = full.cpu_ms_per_request or 0.0, off.cpu_ms_per_request or 0.0
                found.append(MetricsRound(pairs, *rates, *cpu))
                progress("rounds", len(found), rounds * len(sizes))
    return found


def counting_seconds(workload: BenchModel, pairs: int, detail: Detail = Detail.FULL) -> float:
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
    answered: Answered = (pairs, 1e-4, 0.0, 4e-4, 2e-3, 5e-5, 3e-3, 0)

    def count() -> None:
        metrics.in_flight(1)
        version.answered_many([answered])
        if version.lookups is not None:
            version.lookups.looked_up(work, model_input, scores)
        version.ran_batch(requests=1, samples=pairs, seconds=2.5e-3, predicted=2.4e-3)
        version.queue(requests=0, samples=0)
        metrics.in_flight(-1)

    # Processor time: other programs on this core do not count.
    timer = time.thread_time
    return min(timeit.repeat(count, timer=timer, number=_CALLS, repeat=_REPEATS)) / _CALLS


def _summed_up(
    workload: BenchModel, pairs: int, rounds: Sequence[MetricsRound]
) -> dict[str, float]:
    own = [one for one in rounds if one.pairs == pairs]
    return {
        "pairs": pairs,
        "full": median(one.full for one in own),
        "off": median(one.off for one in own),
        "percent": 100.0 * median(one.cost for one in own),
        "full_cpu_ms": median(one.full_cpu_ms for one in own),
        "off_cpu_ms": median(one.off_cpu_ms for one in own),
        "cpu_percent": 100.0 * median(one.cpu_cost for one in own),
        "counting_us": 1e6 * counting_seconds(workload, pairs),
    }
