"""Checks of a version before publication or serving: its golden scores, and each sample alone."""

import numpy as np
from numpy.typing import NDArray

from sharded_infer.artifacts.golden import generate_samples, load_golden
from sharded_infer.engines.model import Model
from sharded_infer.errors import ArtifactError, GateError, RequestError
from sharded_infer.quality.quality_gate import allowed_difference, check_differences
from sharded_infer.quality.score_difference import ScoreDifference, score_differences

# Samples of the batch that `check_independence` runs: a size that is padded.
_TOGETHER = 17
_ALONE = 8  # of those, how many are scored by themselves too
# Factor of the others' inputs: their influence on a mean or maximum shows.
_LOUDNESS = 1000.0
# Rounding at another batch size, of a tower in bf16: its scores differ by less.
_ROUNDING = 0.01


def check_golden(model: Model) -> float:
    """Largest difference of any output; see `golden_differences`."""
    return max(found.largest for found in golden_differences(model).values())


def golden_differences(model: Model) -> dict[str, ScoreDifference]:
    """Compares scores of the golden requests with the fp32 model's.

    Raises:
        GateError: a difference is larger than the spec allows, or scores depend on the batch.
        ArtifactError: the file does not hold golden requests of this model.
    """
    record = model.artifact.manifest.golden
    path = model.artifact.path / record.file
    golden = load_golden(path, model.spec)
    try:
        scores = model.run(golden.model_input)
    except RequestError as error:
        raise ArtifactError(f"{path}: {error}") from error
    for name, expected in golden.scores.items():
        if expected.shape != scores[name].shape:
            raise ArtifactError(
                f"{path}: not golden requests of {model.name!r}: score.{name} is "
                f"{list(expected.shape)}, the tower gives {list(scores[name].shape)}"
            )
    check_independence(model)
    found = score_differences(golden.scores, scores)
    check_differences(model.spec.gate, found, f"model {model.name!r}: a golden request")
    return found


def check_independence(model: Model) -> float:
    """Largest difference between samples alone and in a batch with others and padding.

    A tower that computes over the samples of a batch, such as `x - x.mean(0)`, would silently
    return wrong scores, as servers merge requests and pad batches. Two NaN scores differ by 0.

    Raises:
        GateError: it is larger than 0.01 and than the output's bound in the spec's gate.
    """
    samples = generate_samples(model.spec, _TOGETHER)
    alone = [model.run(samples.samples(at, at + 1)) for at in range(_ALONE)]
    embeddings = model.engine.embeddings(samples)
    embeddings[_ALONE:] *= _LOUDNESS
    for array in samples.dense:
        array[_ALONE:] *= _LOUDNESS
    together = model.score(samples, embeddings)
    largest = 0.0
    for name, scores in zip(model.spec.tower.outputs, together, strict=True):
        by_itself = np.concatenate([one[name] for one in alone])
        magnitude = float(np.sqrt(np.square(by_itself, dtype=np.float64).mean()))
        allowed = max(_ROUNDING, allowed_difference(model.spec.gate, name, magnitude))
        difference = _difference(scores[:_ALONE].numpy(), by_itself)
        if not difference <= allowed:
            raise GateError(
                f"model {model.name!r}: a sample's score {name!r} in a batch of {_TOGETHER} "
                f"differs from its score alone by {difference:.6g}, at most {allowed:g} is "
                "rounding: the tower mixes the samples of a batch (such as a mean or softmax over "
                "dimension 0), but requests are merged and padded"
            )
        largest = max(largest, difference)
    return largest


def _difference(some: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Largest absolute difference: 0 for two NaN or equal infinities, infinity for one."""
    same = (some == others) | (np.isnan(some) & np.isnan(others))
    difference = np.abs(some[~same].astype(np.float64) - others[~same])
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))
