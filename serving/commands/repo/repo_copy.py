"""Copies a version between repositories."""

from typing import Annotated

import typer

from serving.commands.console import print_json, say
from serving.commands.options.json_option import JsonOption
from serving.commands.options.version_options import SignKeyOption
from serving.commands.progress_bars import progress_bars
from serving.commands.repo.arguments import (
    DryRunOption,
    LocationArgument,
    ModelVersionArgument,
    named_model_version,
)
from serving.commands.versions import key_ids
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys
from sharded_infer.repositories.version_copy import copy_version


def repo_copy_command(
    source: LocationArgument,
    what: ModelVersionArgument,
    target: Annotated[str, typer.Argument(metavar="TO", help="Folder or URL to copy it to.")],
    same_version: Annotated[
        bool, typer.Option("--same-version", help="Keep the number; it must be free.")
    ] = False,
    sign_key: SignKeyOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a version to another repository, under the next free number. It is verified first.

    Signatures cover the number: they are kept with --same-version, and otherwise made anew by
    --sign-key.
    """
    origin, destination = Repository(source), Repository(target)
    model, version = named_model_version(origin, what)
    keys = read_signing_keys(sign_key or ())
    was_signed = bool(key_ids(origin, model, version))
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
                keys=keys,
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
                "signed_by": [] if dry_run else key_ids(destination, model, number),
                "dry_run": dry_run,
            }
        )
        return
    verb = "would copy" if dry_run else "copied"
    say(
        f"{verb} {origin.where(model, version)} to {destination.where(model, number)}, "
        f"{size_text(size)}"
    )
    if was_signed and not dry_run and not key_ids(destination, model, number):
        say(
            f"the copy is not signed, since its number is another: repo sign "
            f"{destination.location} {model}@{number} signs it"
        )


def _expected(target: Repository, model: str, version: int, *, same_version: bool) -> int:
    try:
        there = target.versions(model)
    except NotFoundError:
        there = []
    if same_version and version in there:
        raise InputError(f"{target.where(model, version)}: is there already")
    return version if same_version else max(there, default=0) + 1
