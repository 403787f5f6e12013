"""Options that name a published version and keys of its signatures, and what they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sharded_infer.artifacts.artifact import Artifact, open_artifact
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository

RepositoryOption = Annotated[
    str,
    typer.Option(
        "--repository",
        "-r",
        metavar="REPO",
        help="Where versions are published: a folder, or a URL such as s3://bucket/prefix.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Model; may be left out if there is only one.")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", "-a", help="Score on a server, HOST:PORT.")
]
VersionOption = Annotated[int | None, typer.Option("--version", help="Version; default: latest.")]
SignKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--sign-key",
        metavar="FILE",
        help="Private key (ed25519, PEM) that signs the version; may be repeated.",
    ),
]
TrustedKeyOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--trusted-key",
        metavar="FILE",
        help="Public keys (ed25519, PEM), one of which must have signed the version; may be "
        "repeated.",
    ),
]


def only_model(repository: Repository, model: str | None) -> str:
    """The named model, or else the only model; NotFoundError if there are several."""
    if model is not None:
        return model
    models = repository.models()
    if len(models) != 1:
        held = ", ".join(models) or "none"
        raise NotFoundError(f"{repository.location}: say which --model; it holds {held}")
    return models[0]


def named_version(repository: Repository, model: str, name: str) -> int:
    """Resolve a number, a label or `latest`; raise NotFoundError if there is no such version."""
    versions = repository.versions(model)
    if name == "latest":
        return versions[-1]
    if not (name.isascii() and name.isdigit()):
        return repository.label_history(model).version(name)
    if (version := int(name)) not in versions:
        raise NotFoundError(
            f"{repository.location}: model {model!r} has no version {version}; it has "
            f"{', '.join(map(str, versions))}"
        )
    return version


def key_ids(repository: Repository, model: str, version: int) -> list[str]:
    """Key ids of a version's signatures, which are not checked."""
    return sorted(repository.signatures.of(model, repository.manifest_text(model, version)))


@contextmanager
def fetched_artifact(
    repository: Repository, model: str | None, version: int | None, progress: Progress
) -> Iterator[Artifact]:
    """Fetch and open the version that the options name; raises as `only_model` and `fetch`."""
    folder = repository.fetch(only_model(repository, model), version, progress)
    try:
        yield open_artifact(folder)
    finally:
        repository.release(folder)
