"""Adds signatures to a published version."""

from pathlib import Path
from typing import Annotated

import typer

from serving.commands.console import print_result
from serving.commands.options.json_option import JsonOption
from serving.commands.options.version_options import TrustedKeyOption
from serving.commands.repo.arguments import (
    DryRunOption,
    LocationArgument,
    ModelVersionArgument,
    named_model_version,
)
from serving.commands.versions import key_ids
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.keys import read_signing_keys, sign_with


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
