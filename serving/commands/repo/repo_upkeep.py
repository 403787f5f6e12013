"""Verifies a repository's versions and labels, and removes unused versions."""

from dataclasses import asdict
from typing import Annotated

import typer

from kernels.wording import counted
from serving.commands.console import JsonOption, print_errors, print_result, progress_bars
from serving.commands.models.version import NO_CHECKSUM
from serving.commands.options.version_options import TrustedKeyOption, named_version
from serving.commands.repo.arguments import (
    AnyModelArgument,
    DryRunOption,
    LocationArgument,
)
from sharded_infer.artifacts.manifest import MANIFEST_NAME
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import (
    ArtifactError,
    NotFoundError,
    PlanError,
    SignatureError,
    StorageError,
)
from sharded_infer.progress import Progress
from sharded_infer.repositories.garbage_collection import SAFE_SECONDS, Collected, collect
from sharded_infer.repositories.repository import Repository


def repo_verify_command(
    location: LocationArgument,
    model: AnyModelArgument = None,
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="Version, label or latest; default: all."),
    ] = None,
    trusted_key: TrustedKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read and compare every file where it is stored: sizes, hashes, plans and labels.

    All versions are read, whatever is found. The exit code is 1 if one is damaged, if something
    else lies in a version's place, or if none of the --trusted-key keys has signed a version.
    `verify` scores the golden requests too.
    """
    repository = Repository(location, trusted_keys=trusted_key or ())
    wanted = [
        (name, number)
        for name in ([model] if model is not None else repository.models())
        for number in (
            repository.versions(name)
            if version is None
            else [named_version(repository, name, version)]
        )
    ]
    without = [
        (name, number)
        for name, number in repository.incomplete()
        if version is None and model in (None, name)
    ]
    results: list[dict[str, object]] = []
    lines: list[str] = []
    with progress_bars() as progress:
        for name, number in wanted:
            fields, verdict = _verified(repository, name, number, progress)
            results.append(fields)
            lines.append(f"{name} version {number}: {verdict}")
    for name, number in without:
        where = repository.where(name, number)
        message = f"{where}: expected a folder with a {MANIFEST_NAME}: it is no version without one"
        results.append({"model": name, "version": number, "error": message})
        lines.append(f"{name} version {number}: damaged")
    errors = [str(fields["error"]) for fields in results if "error" in fields]
    for name in sorted({name for name, _ in wanted}):
        errors += _label_errors(repository, name)
    print_result({"versions": results, "errors": errors}, "\n".join(lines), as_json=as_json)
    print_errors(errors)


def _verified(
    repository: Repository, model: str, version: int, progress: Progress
) -> tuple[dict[str, object], str]:
    fields: dict[str, object] = {"model": model, "version": version}
    try:
        fields["bytes"] = repository.verify(model, version, progress)
        artifact = repository.open(model, version)
        fields["manifest_sha256"] = artifact.manifest.sha256
        for topology in artifact.manifest.plans:
            artifact.plan(topology)
    except (ArtifactError, NotFoundError, PlanError, StorageError) as error:
        fields["error"] = str(error)
        untrusted = isinstance(error, SignatureError)
        return fields, "not signed by a trusted key" if untrusted else "damaged"
    without = "" if artifact.manifest.sha256 else f"; the manifest is {NO_CHECKSUM}"
    return fields, f"as the manifest says{without}"


def _label_errors(repository: Repository, model: str) -> list[str]:
    try:
        labels = repository.labels(model)
        versions = repository.versions(model)
    except (ArtifactError, NotFoundError, StorageError) as error:
        return [str(error)]
    return [
        f"{repository.location}: model {model!r}: label {label!r} points at version {version}, "
        "which does not exist"
        for label, version in labels.items()
        if version not in versions
    ]


def repo_gc_command(
    location: LocationArgument,
    keep: Annotated[int, typer.Option(help="Number of latest versions to keep.", min=1)],
    model: AnyModelArgument = None,
    safe_hours: Annotated[
        float,
        typer.Option(
            help="Age from which parts that were not joined are removed, and in a store files that "
            "no version names. It must be longer than any upload, and than publishing in parts.",
            min=0.0,
        ),
    ] = SAFE_SECONDS / 3600,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old versions that have no label and are not in use.

    A label's rollback target stays too. Leftovers of killed publishers are removed. A server that
    uses a version in a folder keeps it. For a store, servers have copies of their own.
    """
    repository = Repository(location)
    with progress_bars() as progress:
        done = [
            collect(
                repository,
                name,
                keep=keep,
                dry_run=dry_run,
                safe_seconds=safe_hours * 3600,
                progress=progress,
            )
            for name in ([model] if model is not None else repository.models())
        ]
    models = [
        {
            "model": collected.model,
            "removed": collected.removed,
            "kept": {
                fate.version: fate.kept_because for fate in collected.fates if fate.kept_because
            },
            "freed_bytes": collected.freed_bytes,
            "leftovers": asdict(collected.leftovers),
        }
        for collected in done
    ]
    fields = {"dry_run": dry_run, "models": models}
    lines = [line for collected in done for line in _lines(collected, dry_run=dry_run)]
    print_result(fields, "\n".join(lines), as_json=as_json)


def _lines(collected: Collected, *, dry_run: bool) -> list[str]:
    verb = "would remove" if dry_run else "removed"
    numbers = ", ".join(map(str, collected.removed)) or "none"
    left = collected.leftovers
    lines = [f"{collected.model}: {verb} versions {numbers}, {size_text(collected.freed_bytes)}"]
    lines += [
        f"- {fate.version} stays: {fate.kept_because}"
        for fate in collected.fates
        if fate.kept_because
    ]
    if left.names:
        lines.append(f"- {verb} {counted(len(left.names), 'leftover')}, {size_text(left.bytes)}")
    return lines
