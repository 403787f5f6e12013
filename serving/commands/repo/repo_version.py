"""Copies, signs and compacts a version."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernels.wording import counted
from serving.commands.console import JsonOption, print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.options.version_options import SignKeyOption, TrustedKeyOption, key_ids
from serving.commands.repo.arguments import (
    DryRunOption,
    LocationArgument,
    ModelVersionArgument,
    named_model_version,
)
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys, sign_with
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
    where = destination.where(model, number)
    signed_by = [] if dry_run else key_ids(destination, model, number)
    fields = {
        "model": model,
        "source": origin.where(model, version),
        "target": where,
        "version": number,
        "bytes": size,
        "signed_by": signed_by,
        "dry_run": dry_run,
    }
    verb = "would copy" if dry_run else "copied"
    texts = [f"{verb} {origin.where(model, version)} to {where}, {size_text(size)}"]
    if was_signed and not dry_run and not signed_by:
        texts.append(
            f"the copy is not signed, since its number is another: repo sign "
            f"{destination.location} {model}@{number} signs it"
        )
    print_result(fields, *texts, as_json=as_json)


def _expected(target: Repository, model: str, version: int, *, same_version: bool) -> int:
    try:
        there = target.versions(model)
    except NotFoundError:
        there = []
    if same_version and version in there:
        raise InputError(f"{target.where(model, version)}: is there already")
    return version if same_version else target.next_version(model)


def repo_sign_command(
    location: LocationArgument,
    what: ModelVersionArgument,
    sign_key: Annotated[
        list[Path],
        typer.Option(
            "--sign-key",
            metavar="FILE",
            help="Private key (ed25519, PEM) that signs; may be repeated.",
        ),
    ],
    trusted_key: TrustedKeyOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Sign a published version, beside the signatures that it has.

    With --trusted-key the version must have a signature by such a key already, as when a new key
    takes the place of an old one. Without it, whatever lies in the repository is signed. The files
    are not read: `repo verify` compares them with the manifest.
    """
    repository = Repository(location, trusted_keys=trusted_key or ())
    model, version = named_model_version(repository, what)
    text = repository.manifest_text(model, version)
    signatures = sign_with(read_signing_keys(sign_key), text)
    if not dry_run:
        repository.signatures.add(model, text, signatures)
    where = repository.where(model, version)
    fields = {
        "model": model,
        "version": version,
        "path": where,
        "added": list(signatures),
        "signed_by": key_ids(repository, model, version),
        "dry_run": dry_run,
    }
    verb = "would sign" if dry_run else "signed"
    print_result(fields, f"{verb} {where} by key {', '.join(signatures)}", as_json=as_json)


def repo_compact_command(
    repository: LocationArgument,
    what: ModelVersionArgument,
    sign_key: SignKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a version with changed rows as a whole one, under the next number.

    Its tables have the bytes of a publication of all rows. It has no report on quantization.
    """
    opened = Repository(repository)
    model, version = named_model_version(opened, what)
    compact = load_by_name("sharded_infer.publishing.deltas.compaction:compact")
    with progress_bars() as progress:
        made = compact(opened, model, version, sign_keys=sign_key or (), progress=progress)
    fields = asdict(made)
    fields["path"] = fields.pop("location")
    print_result(
        {"model": model, **fields},
        f"published {model} version {made.version}: version {made.compacted} with its "
        f"{counted(made.overlays, 'file')} of changed rows as one, "
        f"{size_text(made.table_bytes)} of tables\n{made.location}",
        as_json=as_json,
    )
