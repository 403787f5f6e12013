"""Runs requests on a model: one by itself, or several as one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sharded_infer.engines.model import Model
from sharded_infer.inputs.merge import merge_inputs, sample_slices
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.lookups.lookup_work import LookupWork


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What a request got, and what its batch took.

    Attributes:
        scores: fp32 `[B]` or `[B, K]` of each output, in the spec's order; of a batch of several
            requests, views on the batch's.
        lookup_seconds: time of merging, routing, lookups and assembling, of the whole batch;
            on devices of merging and checking it.
        tower_seconds: time of the tower, of the whole batch; on devices until its scores are back.
        ids_outside: ids of the request that were outside their tables (and ignored or wrapped).
        batch: what was looked up: the requests as one.
    """

    scores: tuple[NDArray[np.float32], ...]
    lookup_seconds: float
    tower_seconds: float
    ids_outside: int
    work: LookupWork
    batch: ModelInput


def run_batch(
    model: Model, requests: Sequence[ModelInput], deadline: float = inf
) -> list[RequestResult]:
    """Runs requests together, on the calling thread.

    Pooled embeddings are those of each request alone, to the bit. Scores may differ by the rounding
    of the tower's precision, because matrix products add up in another order at another size, and
    where what samples share is computed once.

    Args:
        requests: at least one. Of several, all with their ids checked.
        deadline: until which other hosts are waited for, on the monotonic clock.

    Returns:
        For each request, what it got.

    Raises:
        RequestError: an id of a single request is outside a table whose policy is `error`.
    """
    started = perf_counter()
    merged = requests[0] if len(requests) == 1 else merge_inputs(requests)
    merging = perf_counter() - started
    ran = model.engine.run(merged, deadline)
    lookup_seconds, tower_seconds = merging + ran.lookup_seconds, ran.tower_seconds
    if len(requests) == 1:
        return [
            RequestResult(
                ran.scores, lookup_seconds, tower_seconds, ran.ids_outside, ran.work, merged
            )
        ]
    return [
        RequestResult(
            tuple(score[place] for score in ran.scores),
            lookup_seconds,
            tower_seconds,
            request.ids_outside,
            ran.work,
            merged,
        )
        for request, place in zip(requests, sample_slices(requests), strict=True)
    ]
