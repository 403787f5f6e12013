"""Published versions that a command's options name."""

from collections.abc import Iterator
from contextlib import contextmanager

from sharded_infer.artifacts.artifact import Artifact, open_artifact
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository


def only_model(repository: Repository, model: str | None) -> str:
    """The named model, or else the only model; NotFoundError if there are several."""
    if model is not None:
        return model
    models = repository.models()
    if len(models) != 1:
        held = ", ".join(models) or "none"
        raise NotFoundError(f"{repository.location}: say which --model; it holds {held}")
    return models[0]


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
