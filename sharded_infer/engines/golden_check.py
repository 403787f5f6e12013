"""Checks of a version before publication or serving: its golden scores, and each sample alone."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.artifacts.golden import generate_samples, load_golden
from sharded_infer.engines.model import Model
from sharded_infer.errors import ArtifactError, GateError, RequestError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.quality.quality_gate import check_differences
from sharded_infer.quality.score_difference import (
    ScoreDifference,
    score_differences,
    score_gaps,
)
from sharded_infer.quality.shared_traits import shared_traits
from sharded_infer.specs.precision import Precision

# Samples of the batch that `check_independence` runs: a size that is padded.
_TOGETHER = 17
_ALONE = 8  # of those, how many are scored by themselves too
# Factor of the others' inputs: their influence on a mean or maximum shows.
_LOUDNESS = 1000.0
# Positions that sequences are padded to, at most, but for those of the first samples: attention
# costs their square.
_PADDED, _FULLY_PADDED = 512, 2
# Rounding at another batch size or length: of a score's magnitude, and in its own unit near 0.
_FP32_ROUNDING = (1e-3, 1e-6)
_COARSE_ROUNDING = (0.05, 1e-3)
# At one batch size, a sample's own products are the same, whatever the others hold.
_SAME_SIZE_ROUNDING = (1e-4, 1e-9)

Scores = list[NDArray[np.float32]]  # `[B]` or `[B, K]` of each output


def check_golden(model: Model) -> float:
    """Largest difference of any output; see `golden_differences`."""
    return max(difference.largest for difference in golden_differences(model).values())


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
        scores = _run_checked(model, golden.model_input)
    except RequestError as error:
        raise ArtifactError(f"{path}: {error}") from error
    for name, expected in golden.scores.items():
        if expected.shape != scores[name].shape:
            raise ArtifactError(
                f"{path}: not golden requests of {model.name!r}: score.{name} is "
                f"{list(expected.shape)}, the tower gives {list(scores[name].shape)}"
            )
    check_independence(model)
    differences = score_differences(golden.scores, scores)
    check_differences(
        model.spec.gate,
        differences,
        f"model {model.name!r}: a golden request",
        traits=partial(shared_traits, model.spec, golden.model_input),
    )
    return differences


def _run_checked(model: Model, samples: ModelInput) -> dict[str, NDArray[np.float32]]:
    size = model.engine.checked_samples
    parts = [
        model.run(samples.samples(at, min(at + size, samples.batch_size)))
        for at in range(0, max(1, samples.batch_size), size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def check_independence(model: Model, *, in_fp32: bool = False) -> float:
    """Largest difference between samples alone and in a batch with others and padding.

    A tower that computes over the samples of a batch, such as `x - x.mean(0)`, would silently
    return wrong scores, as servers merge requests and pad batches. Two NaN scores differ by 0.

    Args:
        in_fp32: the model's tower computes in fp32, whatever its precision.

    Raises:
        GateError: a sample's score follows the inputs of the others, or differs by more than
            rounding from its score alone or with more padding of its sequences, whatever the
            spec's gate allows.
    """
    samples = generate_samples(model.spec, min(_TOGETHER, model.engine.checked_samples))
    largest, together = _check_others(model, samples)
    alone = [model.run(samples.samples(at, at + 1)) for at in range(len(together[0]))]
    by_itself = [
        np.concatenate([scores[name] for scores in alone]) for name in model.spec.tower.outputs
    ]
    exact = in_fp32 or model.spec.tower.precision is Precision.FP32
    rounding = _FP32_ROUNDING if exact else _COARSE_ROUNDING
    if grows := [name for name, spec in model.spec.sequences.items() if spec.pad_to == "longest"]:
        own, padded = _padded_scores(model, samples)
        difference = _checked(
            model, padded, own, rounding, "differs with the padding", _pads(grows)
        )
        largest = max(largest, difference)
    return max(
        largest,
        _checked(model, together, by_itself, rounding, "differs from its score alone", _MIXES),
    )


def check_requests(model: Model, requests: ModelInput) -> None:
    """Checks that scores of a batch of real requests do not follow the inputs of the others.

    Generated inputs may lie where such a tower is constant. Raises GateError as
    `check_independence`.
    """
    if requests.batch_size > 1:
        most = min(_TOGETHER, model.engine.checked_samples, requests.batch_size)
        _check_others(model, requests.samples(0, most))


def _check_others(model: Model, samples: ModelInput) -> tuple[float, Scores]:
    """Largest difference where the last samples have much larger inputs; scores of the first."""
    first = min(_ALONE, samples.batch_size - 1)
    embeddings = model.engine.embeddings(samples)
    together = _first_scores(model.score(samples, embeddings), first)
    embeddings[first:] *= _LOUDNESS
    loud = replace(samples, dense=tuple(array.copy() for array in samples.dense))
    for array in loud.dense:
        array[first:] *= _LOUDNESS
    beside_loud = _first_scores(model.score(loud, embeddings), first)
    advice = "follows the others'", _MIXES
    return _checked(model, beside_loud, together, _SAME_SIZE_ROUNDING, *advice), together


def _checked(
    model: Model, some: Scores, others: Scores, bound: tuple[float, float], against: str, why: str
) -> float:
    """Largest difference of two scorings of samples; GateError for one beyond the bound."""
    largest = 0.0
    for name, scores, expected in zip(model.spec.tower.outputs, some, others, strict=True):
        beyond, difference = _beyond(scores, expected, bound)
        if beyond:
            raise GateError(
                f"model {model.name!r}: a sample's score {name!r} in a batch of several {against}, "
                f"by {difference:.6g}, which is no rounding: {why}"
            )
        largest = max(largest, difference)
    return largest


def _padded_scores(model: Model, samples: ModelInput) -> tuple[Scores, Scores]:
    """Scores of samples alone, with sequences of their own lengths and padded further."""
    both: list[list[Scores]] = [[], []]
    longest = max(spec.max_length for spec in model.spec.sequences.values())
    for at in range(min(_ALONE, samples.batch_size)):
        one = samples.samples(at, at + 1)
        embeddings = model.engine.embeddings(one)
        padded_to = longest if at < _FULLY_PADDED else _PADDED
        for scored, positions in zip(both, (0, padded_to), strict=True):
            scored.append(_first_scores(model.score(one, embeddings, positions=positions), _ALONE))
    shorter, padded = (
        [np.concatenate(scores) for scores in zip(*one, strict=True)] for one in both
    )
    # torch's attention gives NaN or zeros where there is nothing to attend to, by the kernel.
    for some, others in zip(shorter, padded, strict=True):
        some[np.isnan(others)] = others[np.isnan(some)] = np.nan
    return shorter, padded


_MIXES = (
    "the tower mixes the samples of a batch (such as a mean or softmax over dimension 0, or its "
    "size), but requests are merged and padded"
)


def _pads(names: Sequence[str]) -> str:
    return (
        f"the tower's score depends on how far {' or '.join(map(repr, names))} is padded (such as "
        "a mean over dimension 1, or a division by its size), but a batch is padded to its longest "
        f"sequence: mask by {' or '.join(f'{name}_lengths' for name in names)}, or set pad_to = "
        '"max_length" if the module is meant for one length'
    )


def _first_scores(scores: tuple[Tensor, ...], count: int) -> Scores:
    return [score[:count].clone().numpy() for score in scores]


def _beyond(
    some: NDArray[np.float32], others: NDArray[np.float32], bound: tuple[float, float]
) -> tuple[bool, float]:
    """Whether any score `[B]` or `[B, K]` differs by more than the bound, and the largest one.

    The bound is a share of the root mean square of each of K scores, plus a number.
    """
    relative, absolute = bound
    finite = np.where(np.isfinite(others), others, 0).astype(np.float64)
    difference = score_gaps(some, others)
    beyond = difference > relative * np.sqrt(np.square(finite).mean(axis=0)) + absolute
    return bool(beyond.any()), float(difference.max(initial=0.0))
