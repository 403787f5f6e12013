"""The options that name a published version, and the version they name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import typer

from sharded_infer.artifact import Artifact, open_artifact
from sharded_infer.errors import NotFoundError
from sharded_infer.model import Model
from sharded_infer.progress import Progress
from sharded_infer.repository import Repository

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
VersionOption = Annotated[int | None, typer.Option("--version", help="Version; default: latest.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def only_model(repository: Repository, model: str | None) -> str:
    """The model that the options name.

    Raises:
        NotFoundError: there are several models and none is named.
    """
    if model is not None:
        return model
    models = repository.models()
    if len(models) != 1:
        held = ", ".join(models) or "none"
        raise NotFoundError(f"{repository.location}: say which --model; it holds {held}")
    return models[0]


@contextmanager
def fetched_artifact(
    repository: Repository, model: str | None, version: int | None, progress: Progress
) -> Iterator[Artifact]:
    """The version that the options name, whole and on this machine.

    Raises:
        NotFoundError: there is no such version, or several models and none is named.
        ArtifactError, StorageError: it is damaged, or cannot be fetched.
    """
    folder = repository.fetch(only_model(repository, model), version, progress)
    try:
        yield open_artifact(folder)
    finally:
        repository.release(folder)


def open_published(artifact: Artifact, topology: str | None = None) -> Model:
    """Opens a version as a server does; its files are taken as they are: see `verify_files`."""
    # One intra-op thread, as in a server: scores are then equal to the bit.
    torch.set_num_threads(1)
    return Model(artifact, artifact.plan(topology))
