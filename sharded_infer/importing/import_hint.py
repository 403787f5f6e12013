"""Search for the single import mistake that explains recorded scores."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import ShardedInferError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model

_SAMPLES = 64
_TRIED = 300  # changes, each of which scores the samples anew
_SMALLEST = 1e-6  # as for the comparison itself


def likely_mistake(
    model: Fp32Model, samples: ModelInput, output: str, recorded: NDArray[np.float32], bound: float
) -> str:
    """The end of a sentence that names a mistake; empty if no single one explains the scores.

    Tries another pooling of one table, two swapped tables or dense inputs of one shape, and a
    sigmoid. The first 64 samples, a jagged batch of all features, are compared with the trained
    scores (fp32 `[B]` or `[B, K]`). `bound` is a share of the largest score.
    """
    first = samples.samples(0, min(_SAMPLES, samples.batch_size))
    expected = recorded[: first.batch_size].astype(np.float64)
    allowed = bound * max(float(np.abs(expected).max(initial=0.0)), _SMALLEST)

    def explains(scores: NDArray[np.floating]) -> bool:
        return bool((np.abs(scores - expected) <= allowed).all())

    read = _scores(model, first, output)
    with np.errstate(over="ignore"):
        if explains(1 / (1 + np.exp(-read.astype(np.float64)))):
            return "; they are the sigmoid of what the tower returns"
    if explains(read):
        return ""
    for said, changed, given in islice(_changes(model, first), _TRIED):
        try:
            scores = _scores(changed, given, output)
        except ShardedInferError:
            continue
        if explains(scores):
            return f"; they come out with {said}"
    return ""


def _scores(model: Fp32Model, samples: ModelInput, output: str) -> NDArray[np.float32]:
    [embeddings] = model.pooled(samples, [TRAINED])
    return model.score(samples, embeddings)[output]


def _changes(model: Fp32Model, samples: ModelInput) -> Iterator[tuple[str, Fp32Model, ModelInput]]:
    spec = model.spec
    for place, table in enumerate(spec.tables):
        pooling: Literal["sum", "mean"] = "sum" if table.pooling == "mean" else "mean"
        tables = list(spec.tables)
        tables[place] = replace(table, pooling=pooling)
        said = f"table {table.name!r} pooled by {pooling}"
        yield said, model.changed(spec=replace(spec, tables=tuple(tables))), samples
    named = dict(spec.dense.inputs)
    for (one, width), (other, its_width) in combinations(named.items(), 2):
        if width == its_width:
            names = list(named)
            dense = list(samples.dense)
            i, j = names.index(one), names.index(other)
            dense[i], dense[j] = dense[j], dense[i]
            said = f"the dense inputs {one!r} and {other!r} in each other's place"
            yield said, model, replace(samples, dense=tuple(dense))
    for first, second in combinations(spec.tables, 2):
        if (first.rows, first.dim) == (second.rows, second.dim):
            swapped = dict(model.weights)
            swapped[first.name], swapped[second.name] = swapped[second.name], swapped[first.name]
            said = f"the weights of tables {first.name!r} and {second.name!r} swapped"
            yield said, model.changed(weights=swapped), samples
