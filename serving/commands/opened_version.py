"""A version that a command opens in its own process, which takes torch to import."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager

import torch

from serving.commands.console import progress_bars
from serving.commands.options.version_options import fetched_artifact, named_version, only_model
from serving.remote.prediction import Prediction
from serving.remote.replay import ScoreRequest
from sharded_infer.artifacts.artifact import Artifact, verify_files
from sharded_infer.artifacts.mapped_id_maps import open_id_maps
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model
from sharded_infer.inputs.columns import Columns
from sharded_infer.repositories.repository import Repository
from sharded_infer.samples.request import batch_samples


def open_published(artifact: Artifact, topology: str | None = None) -> Model:
    """Open a version as a server does, without verifying its files; see `verify_files`."""
    # One intra-op thread, as in a server: scores are then equal to the bit.
    torch.set_num_threads(1)
    return Model(artifact, artifact.plan(topology))


def golden_differences(artifact: Artifact) -> dict[str, float]:
    """The golden requests' largest difference from fp32, by plan; raises as `check_golden`."""
    for id_map in open_id_maps(artifact).values():
        id_map.check()
    return {
        topology: check_golden(open_published(artifact, topology))
        for topology in artifact.manifest.plans
    }


@contextmanager
def opened_model(
    location: str, model: str | None, version: str | None, *, verify: bool = False
) -> Iterator[Model]:
    """A version, fetched if its repository is remote; raises as `fetch`, and `verify_files`."""
    repository = Repository(location)
    name = only_model(repository, model)
    number = None if version is None else named_version(repository, name, version)
    with (
        progress_bars() as progress,
        fetched_artifact(repository, name, number, progress) as artifact,
    ):
        if verify:
            verify_files(artifact, progress)
        yield open_published(artifact)


@contextmanager
def local_scorer(location: str, model: str, version: str | None) -> Iterator[ScoreRequest]:
    """Scores recorded requests with a version opened in this process; raises as `fetch`."""
    with opened_model(location, model, version) as opened:
        yield lambda request: opened.predict(request.inputs)


def predict_here(
    location: str,
    model: str | None,
    version: str | None,
    read: Callable[[Container[str]], Columns],
    *,
    verify: bool,
) -> Prediction:
    """Score samples as one batch, with a version opened in this process.

    `read` reads the samples, given the inputs whose ids may be strings. Raises as `fetch` and
    `verify_files`, and RequestError if a sample does not fit the model.
    """
    with opened_model(location, model, version, verify=verify) as opened:
        samples = read(opened.spec.string_inputs)
        scores = opened.predict(batch_samples(opened.spec, samples))
        return Prediction(opened.name, opened.version, scores)
