"""Executors: how a request's batch is run on a model."""

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sharded_infer.batch import ModelInput
from sharded_infer.model import Model


@dataclass(frozen=True, slots=True)
class Execution:
    """What one batch gave, and what it took.

    Attributes:
        scores: fp32 `[B]` or `[B, K]` of each output, in the spec's order.
        lookup_seconds: time of routing, lookups and merging.
        tower_seconds: time of the tower.
        ids_outside: ids that were outside their tables (and ignored or wrapped).
    """

    scores: tuple[NDArray[np.float32], ...]
    lookup_seconds: float
    tower_seconds: float
    ids_outside: int


def run_inline(model: Model, model_input: ModelInput) -> Execution:
    """Runs one request's batch by itself, on the calling thread.

    Args:
        model: what to run it on.
        model_input: the batch.

    Raises:
        RequestError: an id is outside a table whose policy is `error`.
    """
    started = perf_counter()
    embeddings, ids_outside = model.lookup(model_input)
    looked_up = perf_counter()
    scores = model.score(model_input, embeddings)
    finished = perf_counter()
    return Execution(
        scores=tuple(score.numpy() for score in scores),
        lookup_seconds=looked_up - started,
        tower_seconds=finished - looked_up,
        ids_outside=ids_outside,
    )
