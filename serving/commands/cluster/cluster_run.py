"""Starts, shows, replaces and ends a cluster's processes on Ray."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from serving.cluster.cluster_file import read_cluster
from serving.commands.cluster.ray_module import ray_module
from serving.commands.console import JsonOption, print_result, progress_bars

if TYPE_CHECKING:
    from serving.cluster.ray_cluster import ProcessReport, RayCluster

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="TOML file of the cluster, such as cluster.toml.")
]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", min=1, help="Seconds for a process to be ready, with its rows."),
]


def cluster_up_command(
    file: FileArgument, timeout: TimeoutOption = 3600.0, as_json: JsonOption = False
) -> None:
    """Start the processes of a cluster on Ray, and wait for them.

    What runs already stays as it is. Replicas of a host lie on different machines, and memory is
    one of Ray's resources. Ray starts lost processes again, on other machines where it must.
    """
    with _cluster(file) as cluster, progress_bars() as progress:
        reports = cluster.up(timeout, progress)
    _print(reports, as_json=as_json)


def cluster_status_command(file: FileArgument, as_json: JsonOption = False) -> None:
    """Show the processes of a cluster: machines, addresses, versions.

    Restarts are of a process since its supervisor started, and one if Ray has moved that. The exit
    code is 1 if one is not ready.
    """
    with _cluster(file) as cluster:
        reports = cluster.status()
    _print(reports, as_json=as_json)
    if any(report.state != "ready" for report in reports):
        raise typer.Exit(1)


def cluster_roll_command(
    file: FileArgument, timeout: TimeoutOption = 3600.0, as_json: JsonOption = False
) -> None:
    """Replace the processes of a cluster one after another.

    One is replaced when all others are ready. They take the settings that the file has now, and the
    release that is installed.
    """
    with _cluster(file) as cluster, progress_bars() as progress:
        reports = cluster.roll(timeout, progress)
    _print(reports, as_json=as_json)


def cluster_down_command(file: FileArgument, as_json: JsonOption = False) -> None:
    """End the processes of a cluster.

    Fronts end first. All drain, and their room goes back to Ray.
    """
    with _cluster(file) as cluster:
        ended = cluster.down()
    print_result({"ended": ended}, f"ended {ended} processes", as_json=as_json)


@contextmanager
def _cluster(file: Path) -> Iterator["RayCluster"]:
    read = read_cluster(file)
    with ray_module("serving.cluster.ray_cluster:RayCluster") as opened:
        cluster: RayCluster = opened(read, file.parent)
        try:
            yield cluster
        finally:
            cluster.close()


def _print(reports: "Sequence[ProcessReport]", *, as_json: bool) -> None:
    fields = {
        "ready": all(report.state == "ready" for report in reports),
        "processes": [asdict(report) for report in reports],
    }
    table = Table("process", "state", "node", "address", "versions", "restarts", box=None)
    for one in reports:
        table.add_row(
            one.name,
            one.state,
            "-" if one.node is None else f"{one.node} ({(one.node_id or '')[:8]})",
            one.address or "-",
            ", ".join(one.versions) or "-",
            str(one.restarts),
        )
    problems = [
        f"{one.name}: {one.problem}" for one in reports if one.state != "ready" and one.problem
    ]
    print_result(fields, table, *problems, as_json=as_json)
