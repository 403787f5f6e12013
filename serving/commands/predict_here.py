"""Scores samples in this process; apart from `predict`, which asks a server without torch."""

from serving.commands.opened_version import open_published
from serving.commands.repo_arguments import named_version
from serving.commands.versions import fetched_artifact, only_model
from serving.prediction import Prediction
from serving.progress import progress_bars
from sharded_infer.artifact import verify_files
from sharded_infer.columns import Columns
from sharded_infer.repository import Repository
from sharded_infer.samples.request import batch_samples


def predict_here(
    location: str, model: str | None, version: str | None, samples: Columns, *, verify: bool
) -> Prediction:
    """Scores samples as one batch, with a version opened in this process.

    Args:
        location: the repository, a folder or URL.
        model: the model's name; None: the only one.
        version: its number, a label or `latest`; None: the latest.
        samples: the samples.
        verify: whether the version's files are compared with its manifest's hashes first.

    Raises:
        NotFoundError: there is no such version, or several models and none is named.
        ArtifactError, StorageError: it is damaged, or cannot be fetched.
        RequestError: a sample is not one of this model's.
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
        scores = opened.predict(batch_samples(opened.spec, samples))
        return Prediction(opened.name, opened.version, scores)
