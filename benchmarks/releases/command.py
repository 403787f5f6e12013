"""Effect of a release on a server's latency."""

from dataclasses import replace
from typing import Annotated

import typer

from benchmarks.releases.deltas import measure_deltas
from benchmarks.releases.releases import ReleaseLoad, measure_releases
from serving.bench.workloads.workload import workload_named
from serving.commands.bench.options import PairsOption, ServeOption, WorkloadOption
from serving.commands.bench.report import Report, bench_command
from serving.commands.options.tower_precision import TowerPrecision
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision


@bench_command
def releases_command(
    progress: Progress,
    workload: WorkloadOption = "ranking",
    precision: TowerPrecision = Precision.BF16,
    pairs: PairsOption = 16,
    share: Annotated[
        float, typer.Option(help="Load, as a share of the capacity.", min=0.01, max=0.95)
    ] = 0.5,
    rounds: Annotated[int, typer.Option(help="Rounds, each with one release.", min=1)] = 7,
    seconds: Annotated[
        float,
        typer.Option(help="Seconds of load in each run of a round.", min=2),
    ] = 10.0,
    serve_option: ServeOption = None,
    delta: Annotated[
        bool,
        typer.Option(
            "--delta",
            help="Publish changed rows of one table instead, beside a whole release of it.",
        ),
    ] = False,
    gigabytes: Annotated[
        float, typer.Option(help="With --delta: size of the stored table.", min=0.001)
    ] = 2.0,
    changed: Annotated[
        float, typer.Option(help="With --delta: share of the rows that change.", min=1e-6, max=1.0)
    ] = 0.01,
) -> Report:
    """Measure latency while a version is loaded, beside the same load without a release.

    The server has one core and the load another. Each round sends the same requests at the same
    random times twice. Once, a version as large as the served one appears in the repository. Only
    the time until it is served is compared, and of all rounds together. Windows of 0.25 s from
    which the hypervisor took more than 10 ms, and those behind them, are left out on both sides.

    With --delta, some rows of a table are published by `publish --changed` in each round: the
    time from its call until the version is served, the bytes written, the latency meanwhile, and
    what changed rows cost lookups. A third run has the same command beside it, for a repository
    that nobody serves. --workload and --precision do not count then.
    """
    load = ReleaseLoad(pairs, share, rounds, seconds, tuple(serve_option or ()))
    if delta:
        return measure_deltas(gigabytes, changed, load, progress)
    chosen = workload_named(workload, precision)
    report = measure_releases(chosen, load, progress)
    return replace(
        report,
        notes=[*report.notes, f"{workload}, {precision} tower"],
        fields={"workload": workload, "precision": precision, **report.fields},
    )
