"""Effect of a release on the latency of a server in service."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.releases.deltas import measure_deltas
from benchmarks.releases.release_round import ROUND_COLUMNS, ReleaseLoad, releasing
from serving.bench.workloads.named import workload_named
from serving.commands.bench.options import PairsOption, ServeOption, TowerPrecision, WorkloadOption
from serving.commands.bench.report import Report, bench_command
from sharded_infer.artifacts.manifest import MANIFEST_NAME, with_checksum
from sharded_infer.byte_sizes import size_text
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
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
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        repository = Path(folder)
        chosen.publish(repository)
        prepare = partial(_prepare, repository / chosen.name)
        table_bytes = Repository(repository).open(chosen.name).manifest.table_bytes
        with releasing(chosen, repository, prepare, load, progress) as (_, released):
            return Report(
                ROUND_COLUMNS,
                released.rounds,
                [
                    f"\n{released.note()}\n",
                    f"{pairs} pairs, {released.rate:.0f} of {released.capacity:.0f} requests/s, "
                    f"{size_text(table_bytes)} of tables, one core",
                    f"{workload}, {precision} tower",
                ],
                {
                    "workload": workload,
                    "precision": precision,
                    "pairs": pairs,
                    "capacity_requests_per_second": released.capacity,
                    "requests_per_second": released.rate,
                    "table_bytes": table_bytes,
                    **released.fields(),
                },
            )


def _prepare(home: Path) -> tuple[Callable[[], int], None]:
    """Copy the first version beside the repository; it appears by a rename."""
    number = 1 + max(int(path.name) for path in home.iterdir() if path.name.isdigit())
    staged = home / f".coming-{number}"
    # The files are the first version's own: the loading is compared.
    shutil.copytree(home / "1", staged, copy_function=os.link)
    manifest = json.loads((staged / MANIFEST_NAME).read_bytes())
    (staged / MANIFEST_NAME).unlink()
    del manifest["sha256"]
    text = json.dumps({**manifest, "version": number}).encode()
    (staged / MANIFEST_NAME).write_bytes(with_checksum(text))

    def appear() -> int:
        staged.rename(home / str(number))
        return number

    return appear, None
