"""The commands of `cluster`: a cluster's processes on Ray, and publishing in parts there."""

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from serving.cluster.cluster_file import read_cluster
from serving.commands.console import OUT, JsonOption, print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.models.publish import PublishJob, PublishOptions, print_version
from serving.commands.options.option_fields import declare_fields
from sharded_infer.byte_sizes import parse_size, size_text
from sharded_infer.errors import InputError, StorageError
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys

if TYPE_CHECKING:
    from serving.cluster.ray_cluster import ProcessReport, RayCluster
    from serving.cluster.ray_parts import RayParts
    from sharded_infer.publishing.part_publication import PublishedPart

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
def ray_module(target: str) -> Iterator[Any]:
    """Import `module:attribute` without Ray's prints on standard output; InputError without Ray."""
    try:
        loaded = load_by_name(target)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InputError(
            "Ray is not installed: pip install 'sharded-infer[ray]', on every machine"
        ) from error
    # Ray prints the state of nodes there; standard output is for the commands' results.
    with redirect_stdout(sys.stderr):
        yield loaded


@contextmanager
def _cluster(file: Path) -> Iterator["RayCluster"]:
    read = read_cluster(file)
    with (
        ray_module("serving.cluster.ray_cluster:RayCluster") as opened,
        closing(opened(read, file.parent)) as cluster,
    ):
        yield cluster


def _print(reports: "Sequence[ProcessReport]", *, as_json: bool) -> None:
    fields = {
        "ready": all(report.state == "ready" for report in reports),
        "processes": [asdict(report) for report in reports],
    }
    table = Table("process", "state", "node", "address", "versions", "restarts", box=None)
    for report in reports:
        table.add_row(
            report.name,
            report.state,
            "-" if report.node is None else f"{report.node} ({(report.node_id or '')[:8]})",
            report.address or "-",
            ", ".join(report.versions) or "-",
            str(report.restarts),
        )
    problems = [
        f"{report.name}: {report.problem}"
        for report in reports
        if report.state != "ready" and report.problem
    ]
    print_result(fields, table, *problems, as_json=as_json)


def cluster_publish_command(
    parts: Annotated[
        int,
        typer.Option("--parts", metavar="N", min=1, help="Number of parts, a task of Ray each."),
    ],
    ray_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Ray's head; auto: the Ray of this machine.")
    ] = "auto",
    part_cpus: Annotated[
        float, typer.Option(min=0.01, max=1024, help="CPUs that Ray counts for a part.")
    ] = 1.0,
    part_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory that Ray counts for a part.")
    ] = "2GB",
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            max=1000,
            help="How often a part is made again whose process or machine was lost.",
        ),
    ] = 3,
    as_json: JsonOption = False,
    **values: Any,
) -> None:
    """Publish a model in parts, which machines of Ray make.

    Each part is `publish --part`, spread over the machines; this process joins them. The version
    has the files of a whole publish. Weights and repository lie where every machine finds them
    under the same path, or in an object store.
    """
    memory = parse_size(part_memory, "--part-memory")
    job = PublishJob.read(PublishOptions(**values))
    options = job.options
    load_by_name("sharded_infer.publishing.part_publication:check_parts")(parts)
    for layout in options.topologies:
        load_by_name("sharded_infer.planning.topology_file:parse_topology")(layout)
    keys = read_signing_keys(options.sign_key or ())
    trained = job.read_trained()
    published = Repository(options.repository)
    fp32_bytes = sum(4 * table.rows * table.dim for table in job.spec.tables)
    with progress_bars() as progress:
        with ExitStack() as stack:
            loaded = stack.enter_context(ray_module("serving.cluster.ray_parts:RayParts"))
            ray: RayParts = loaded(ray_address, cpus=part_cpus, memory=memory, retries=retries)
            stack.enter_context(closing(ray))
            # Every machine sees this folder if they share the repository.
            staged = stack.enter_context(published.staging(job.spec.name))
            location = published.location
            everywhere = replace(
                options.resolved(),
                repository=location if published.is_remote else str(published.path.resolve()),
            )
            make = functools.partial(
                store_part_here,
                replace(job, options=everywhere),
                None if published.is_remote else staged.resolve(),
                parts,
            )
            runs = ray.run(make, parts, fp32_bytes, progress)
        version = job.publish(trained, keys=keys, parts=parts, progress=progress)
    table = Table("part", "node", "starts", "rows", "fp32", "stored", box=None)
    fields = []
    for stored, node, starts in runs:
        made = asdict(stored)
        del made["parts"], made["location"]
        fields.append({**made, "node": node, "starts": starts})
        table.add_row(
            f"{stored.part}/{stored.parts}",
            node,
            str(starts),
            f"{stored.rows:,}",
            size_text(stored.fp32_bytes),
            size_text(stored.table_bytes),
        )
    if not as_json:
        OUT.print(table)
    print_version(job.spec.name, version, {"parts": fields}, as_json=as_json)


def store_part_here(
    job: PublishJob, staged: Path | None, parts: int, part: int, progress: Progress
) -> "PublishedPart":
    """Store a part; InputError without the checkpoint here, StorageError without the repository."""
    weights, repository = job.options.weights, job.options.repository
    if not weights.exists():
        raise InputError(f"{weights}: expected weights that every machine can read, got no file")
    if staged is not None and not staged.is_dir():
        raise StorageError(
            f"{repository}: expected the repository in a folder that all machines share, "
            "or an object store, got another folder"
        )
    return job.store_part(part, parts, progress)


declare_fields(cluster_publish_command, PublishOptions)
