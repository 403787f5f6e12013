"""The options that name a published version, and the version they name."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from sharded_infer.artifact import Artifact
from sharded_infer.errors import NotFoundError
from sharded_infer.model import Model
from sharded_infer.repository import Repository

RepositoryOption = Annotated[
    Path, typer.Option("--repository", "-r", help="Folder that versions are published in.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Model; may be left out if there is only one.")
]
VersionOption = Annotated[int | None, typer.Option("--version", help="Version; default: latest.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def find_artifact(repository: Path, model: str | None, version: int | None) -> Artifact:
    """The version that the options name.

    Raises:
        NotFoundError: there is no such version, or several models and none is named.
    """
    published = Repository(repository)
    if model is None:
        models = published.models()
        if len(models) != 1:
            held = ", ".join(models) or "none"
            raise NotFoundError(f"{repository}: say which --model; it holds {held}")
        (model,) = models
    return published.open(model, version)


def open_published(artifact: Artifact, topology: str | None = None) -> Model:
    """Opens a version as a server does, without hashing its files."""
    # One intra-op thread, as in a server: scores are then equal to the bit.
    torch.set_num_threads(1)
    return Model(artifact, artifact.plan(topology))
