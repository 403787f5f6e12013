"""Scores samples in this process; a separate module, since `predict` on a server needs no torch."""

from collections.abc import Callable, Container

from serving.commands.opened_version import open_published
from serving.commands.progress_bars import progress_bars
from serving.commands.repo.arguments import named_version
from serving.commands.versions import fetched_artifact, only_model
from serving.remote.prediction import Prediction
from sharded_infer.artifacts.artifact import verify_files
from sharded_infer.inputs.columns import Columns
from sharded_infer.repositories.repository import Repository
from sharded_infer.samples.request import batch_samples


def predict_here(
    location: str,
    model: str | None,
    version: str | None,
    read: Callable[[Container[str]], Columns],
    *,
    verify: bool,
) -> Prediction:
    """Score samples as one batch, with a version opened in this process.

    Args:
        location: folder or URL of the repository.
        model: None: the only one.
        version: number, label or `latest`; None: the latest.
        read: reads the samples, given the inputs whose ids may be strings.
        verify: first compare the version's files with its manifest's hashes.

    Raises:
        NotFoundError: the version does not exist, or no model is named and there are several.
        ArtifactError, StorageError: the version is damaged, or cannot be fetched.
        RequestError: a sample does not fit the model.
    """
    repository = Repository(location)
    name = only_model(repository, model)
    number = None if version is None else named_version(repository, name, version)
    with (
        progress_bars() as progress,
        fetched_artifact(repository, name, number, progress) as artifact,
    ):
        if verify:
            verify_files(artifact, progress)
        opened = open_published(artifact)
        samples = read(opened.spec.string_inputs)
        scores = opened.predict(batch_samples(opened.spec, samples))
        return Prediction(opened.name, opened.version, scores)
