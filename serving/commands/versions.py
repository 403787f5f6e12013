"""The published version that a command's options name."""

from collections.abc import Iterator
from contextlib import contextmanager

from sharded_infer.artifact import Artifact, open_artifact
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress
from sharded_infer.repository import Repository


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
