"""Effect of a release on a server's latency."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Annotated

import typer

from benchmarks.releases.deltas import DeltaMeasurement, measure_deltas
from benchmarks.releases.release_round import ELSEWHERE, QUIET, RELEASE, ReleaseRound
from benchmarks.releases.releases import Released, ReleaseLoad, measure_releases
from serving.bench.workloads.workload import workload_named
from serving.commands.bench.report import print_notes, print_table
from serving.commands.console import check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from sharded_infer.byte_sizes import size_text
from sharded_infer.specs.precision import Precision


def releases_command(
    workload: Annotated[
        str, typer.Option(help="Model and requests: ranking, ragged or dlrm-v2.")
    ] = "ranking",
    precision: TowerPrecision = Precision.BF16,
    pairs: Annotated[int, typer.Option(help="Samples of a request.", min=1)] = 16,
    share: Annotated[
        float, typer.Option(help="Load, as a share of the capacity.", min=0.01, max=0.95)
    ] = 0.5,
    rounds: Annotated[int, typer.Option(help="Rounds, each with one release.", min=1)] = 7,
    seconds: Annotated[
        float,
        typer.Option(help="Seconds of load in each run of a round.", min=2),
    ] = 10.0,
    serve_option: Annotated[
        list[str] | None,
        typer.Option(help="Option for the server, such as --serve-option=--workers=2."),
    ] = None,
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
    json_file: JsonFileOption = None,
) -> None:
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
    check_target(json_file)
    load = ReleaseLoad(pairs, share, rounds, seconds, tuple(serve_option or ()))
    if delta:
        with progress_bars() as progress:
            found = measure_deltas(
                gigabytes=gigabytes, changed=changed, load=load, progress=progress
            )
        _print_deltas(found)
        write_json(json_file, _delta_fields(found))
        return
    with progress_bars() as progress:
        measured = measure_releases(
            workload_named(workload).in_precision(precision), load, progress
        )
    released = measured.released
    _print_rounds(released.rounds)
    print_notes(
        f"\n{_pooled_text(released)}\n",
        f"{workload}, {precision} tower, {pairs} pairs, {released.rate:.0f} of "
        f"{released.capacity:.0f} requests/s, {size_text(measured.table_bytes)} of tables, "
        "one core",
    )
    fields = {
        "workload": workload,
        "precision": precision,
        "pairs": pairs,
        "capacity_requests_per_second": released.capacity,
        "requests_per_second": released.rate,
        "table_bytes": measured.table_bytes,
        "p99_ratio": released.p99_ratio,
        "pooled": asdict(released.requests),
        "failed_requests": released.failed,
        "rounds": _rounds(released.rounds),
    }
    write_json(json_file, fields)


def _delta_fields(found: DeltaMeasurement) -> dict[str, object]:
    fields, released = asdict(found), found.released
    del fields["released"]
    return {
        "publish_to_served_seconds": released.load_seconds,
        "bytes_over_changed": found.bytes_over_changed,
        "p99_ratio": released.p99_ratio,
        "p99_ratio_elsewhere": released.requests.p99_ratio(ELSEWHERE, QUIET),
        "loading_p99_ratio": released.loading.p99_ratio(RELEASE, QUIET),
        "pooled": asdict(released.requests),
        "pooled_loading": asdict(released.loading),
        "rate": released.rate,
        "capacity": released.capacity,
        **fields,
        "rounds": _rounds(released.rounds),
        "failed_requests": released.failed,
    }


def _rounds(rounds: Sequence[ReleaseRound]) -> list[dict[str, object]]:
    return [asdict(one) | {"p99_ratio": one.p99_ratio} for one in rounds]


def _print_deltas(found: DeltaMeasurement) -> None:
    released = found.released
    _print_rounds(released.rounds)
    print_notes(
        f"\n{found.changed_rows:,} of {found.rows:,} rows changed, "
        f"{size_text(found.table_bytes)} of table, {released.rate:.0f} of "
        f"{released.capacity:.0f} requests/s, one core",
        f"from publish to served: {released.load_seconds:.2f} s; whole: {found.full_seconds:.1f} s",
        f"written: {size_text(round(median(found.written_bytes)))}, "
        f"{found.bytes_over_changed:.2f} times the changed rows; whole: "
        f"{size_text(found.full_bytes)}",
        _pooled_text(released),
        f"beside the command for a repository that nobody serves: "
        f"{_ratio_text(released.requests.p99_ratio(ELSEWHERE, QUIET))}; after it was published: "
        f"{_ratio_text(released.loading.p99_ratio(RELEASE, QUIET))}",
        f"lookups with changed rows: {found.lookup_ratio:.3f} times the time of those without",
    )


def _pooled_text(released: Released) -> str:
    found = released.requests
    return (
        f"p99 meanwhile: {_ratio_text(released.p99_ratio)} times that without, of "
        f"{found.requests} requests in {found.windows - found.left_out} of {found.windows} windows"
    )


def _ratio_text(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.2f}"


def _print_rounds(rounds: Sequence[ReleaseRound]) -> None:
    names = ("load s", "p50", "p99", "p50 releasing", "p99 releasing", "ratio")
    print_table(
        [*((name, ".2f") for name in names), ("failed", "d")],
        (
            (
                one.load_seconds, one.quiet_ms["p50"], one.quiet_ms["p99"], one.release_ms["p50"],
                one.release_ms["p99"], one.p99_ratio, one.failed,
            )
            for one in rounds
        ),
    )  # fmt: skip
