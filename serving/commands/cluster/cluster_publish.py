"""Publishes a model in parts, on Ray."""

import functools
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from serving.commands.cluster.ray_module import ray_module
from serving.commands.console import OUT, JsonOption, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.models.publish import print_version
from serving.commands.models.publish_options import PublishJob, PublishOptions
from serving.commands.options.option_fields import declare_fields
from sharded_infer.byte_sizes import parse_size, size_text
from sharded_infer.errors import InputError, StorageError
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys

if TYPE_CHECKING:
    from serving.cluster.ray_parts import PartRun, RayParts
    from sharded_infer.publishing.part_publication import PublishedPart


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
    if not as_json:
        _print_parts(runs)
    fields = {"parts": [_part_fields(run) for run in runs]}
    print_version(job.spec.name, version, fields, as_json=as_json)


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


def _part_fields(run: "PartRun") -> dict[str, object]:
    fields = asdict(run.made)
    del fields["parts"], fields["location"]
    return {**fields, "node": run.node, "starts": run.starts}


def _print_parts(runs: "list[PartRun]") -> None:
    table = Table("part", "node", "starts", "rows", "fp32", "stored", box=None)
    for run in runs:
        table.add_row(
            f"{run.made.part}/{run.made.parts}",
            run.node,
            str(run.starts),
            f"{run.made.rows:,}",
            size_text(run.made.fp32_bytes),
            size_text(run.made.table_bytes),
        )
    OUT.print(table)


declare_fields(cluster_publish_command, PublishOptions)
