"""Lists a repository: its models, their versions and labels."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from time import time
from typing import Annotated

import typer

from serving.commands.console import (
    JsonOption,
    figure_table,
    print_errors,
    print_json,
    print_result,
    progress_bars,
)
from serving.commands.models.version import print_version
from serving.commands.options.version_options import key_ids, named_version
from serving.commands.repo.arguments import (
    LocationArgument,
    ModelArgument,
    age_seconds,
    age_text,
    weights_text,
)
from serving.commands.repo.promotion_text import promotion_lines
from sharded_infer.artifacts.manifest import manifest_fields
from sharded_infer.artifacts.provenance import Provenance
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import ArtifactError, NotFoundError, StorageError
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A listed version; `new_bytes` are of files that no earlier one has, `in_use` of folders."""

    version: int
    labels: list[str]
    created_at: str | None = None
    age_seconds: float | None = None
    bytes: int = 0
    new_bytes: int = 0
    table_bytes: int = 0
    max_score_diff: float | None = None
    provenance: Provenance | None = None
    in_use: bool = False
    error: str | None = None


def repo_list_command(location: LocationArgument, as_json: JsonOption = False) -> None:
    """List models with their versions, labels, sizes and ages. Reads manifests only."""
    repository = Repository(location)
    now = datetime.now(UTC)
    models: dict[str, tuple[dict[str, int], list[VersionLine]]] = {}
    errors = []
    with progress_bars() as progress:
        for model in repository.models():
            try:
                lines = version_lines(repository, model, now, progress)
                models[model] = repository.labels(model), lines
            except (ArtifactError, NotFoundError, StorageError) as error:
                # Other models are still listed.
                errors.append(str(error))
    fields = {
        "repository": repository.location,
        "models": {
            model: {"labels": labels, "versions": [asdict(line) for line in lines]}
            for model, (labels, lines) in models.items()
        },
    }
    headings = ("model", "versions", "latest", "labels", "stored", "age")
    table = figure_table(repository.location, headings, left=("model", "labels"))
    for model, (labels, lines) in models.items():
        table.add_row(
            model,
            str(len(lines)),
            str(lines[-1].version),
            ", ".join(f"{label} {version}" for label, version in labels.items()),
            size_text(sum(line.new_bytes for line in lines)),
            age_text(lines[-1].age_seconds),
        )
    texts: list[str] = []
    for model, (_, lines) in models.items():
        texts += _provenances(model, lines[-1:])
        texts += [f"{model} version {line.version}: {line.error}" for line in lines if line.error]
    print_result(fields, table, *texts, as_json=as_json)
    print_errors(errors)


def repo_show_command(
    location: LocationArgument,
    model: ModelArgument,
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="VERSION", help="Version, label or latest; default: list all versions."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the versions of a model, or the contents of one."""
    repository = Repository(location)
    if version is not None:
        number = named_version(repository, model, version)
        if as_json:
            manifest = manifest_fields(repository.manifest(model, number))
            print_json({**manifest, "signed_by": key_ids(repository, model, number)})
        else:
            print_version(repository.open(model, number), repository)
        return
    with progress_bars() as progress:
        lines = version_lines(repository, model, datetime.now(UTC), progress)
    labels = repository.label_history(model)
    fields = {
        "model": model,
        "labels": dict(labels.versions),
        "history": {label: list(past) for label, past in labels.history.items()},
        "weights": dict(labels.weights),
        "past_weights": [dict(weights) for weights in labels.past_weights],
        "promotion": None if labels.promotion is None else asdict(labels.promotion),
        "ended": {label: [asdict(one) for one in past] for label, past in labels.ended.items()},
        "versions": [asdict(line) for line in lines],
    }
    headings = ("version", "labels", "age", "size", "new", "tables", "golden diff", "")
    table = figure_table(f"{model} in {repository.location}", headings, left=("labels", ""))
    for line in lines:
        difference = line.max_score_diff
        table.add_row(
            str(line.version),
            ", ".join(line.labels),
            age_text(line.age_seconds),
            size_text(line.bytes),
            size_text(line.new_bytes),
            size_text(line.table_bytes),
            "" if difference is None else f"{difference:.2g}",
            line.error or ("in use" if line.in_use else ""),
        )
    texts = _provenances(model, lines)
    for label, past in labels.history.items():
        if past:
            texts.append(f"{label} pointed at {', '.join(map(str, past))} before")
    if labels.weights:
        before = "; ".join(map(weights_text, labels.past_weights)) or "none"
        texts.append(f"weights {weights_text(labels.weights)}, before: {before}")
    print_result(fields, table, *texts, *promotion_lines(labels, time()), as_json=as_json)


def _provenances(model: str, lines: Sequence[VersionLine]) -> list[str]:
    return [
        f"{model} version {line.version}: {line.provenance.text}"
        for line in lines
        if line.provenance is not None
    ]


def version_lines(
    repository: Repository, model: str, now: datetime, progress: Progress
) -> list[VersionLine]:
    """Versions of a model, ascending; damaged ones with their error."""
    labels = repository.labels(model)
    lines: list[VersionLine] = []
    seen: set[str] = set()
    versions = repository.versions(model)
    for count, version in enumerate(versions, start=1):
        named = sorted(label for label, of in labels.items() if of == version)
        try:
            manifest = repository.manifest(model, version)
        except ArtifactError as error:
            lines.append(VersionLine(version, named, error=str(error)))
        else:
            files = {record.sha256: record.bytes for record in manifest.files.values()}
            line = VersionLine(
                version=version,
                labels=named,
                created_at=manifest.created_at,
                age_seconds=age_seconds(manifest.created_at, now),
                bytes=sum(record.bytes for record in manifest.files.values()),
                new_bytes=sum(size for sha256, size in files.items() if sha256 not in seen),
                table_bytes=manifest.table_bytes,
                max_score_diff=manifest.golden.max_score_diff,
                provenance=manifest.provenance,
                in_use=repository.in_use(model, version),
            )
            seen.update(files)
            lines.append(line)
        progress("reading manifests", count, len(versions))
    return lines
