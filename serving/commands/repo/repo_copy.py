"""Copies a version between repositories."""

from typing import Annotated

import typer

from serving.commands.console import OUT, print_json
from serving.commands.options.json_option import JsonOption
from serving.commands.progress_bars import progress_bars
from serving.commands.repo.arguments import DryRunOption, LocationArgument, named_version
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.version_copy import copy_version


def repo_copy_command(
    source: LocationArgument,
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL[@VERSION]", help="Model, and a version or label of it; default: latest."
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="TO", help="Folder or URL to copy it to.")],
    same_version: Annotated[
        bool, typer.Option("--same-version", help="Keep the number; it must be free.")
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a version to another repository, under the next free number. It is verified first."""
    model, _, name = what.partition("@")
    origin, destination = Repository(source), Repository(target)
    version = named_version(origin, model, name or "latest")
    size = sum(record.bytes for record in origin.manifest(model, version).files.values())
    if dry_run:
        number = _expected(destination, model, version, same_version=same_version)
    else:
        with progress_bars() as progress:
            number = copy_version(
                origin,
                model,
                version,
                destination,
                same_version=same_version,
                progress=progress,
            )
    if as_json:
        print_json(
            {
                "model": model,
                "source": origin.where(model, version),
                "target": destination.where(model, number),
                "version": number,
                "bytes": size,
                "dry_run": dry_run,
            }
        )
        return
    verb = "would copy" if dry_run else "copied"
    OUT.print(
        f"{verb} {origin.where(model, version)} to {destination.where(model, number)}, "
        f"{size_text(size)}",
        highlight=False,
        soft_wrap=True,
    )


def _expected(target: Repository, model: str, version: int, *, same_version: bool) -> int:
    try:
        there = target.versions(model)
    except NotFoundError:
        there = []
    if same_version and version in there:
        raise InputError(f"{target.where(model, version)}: is there already")
    return version if same_version else max(there, default=0) + 1
