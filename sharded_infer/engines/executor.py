"""Runs requests on a model: one by itself, or several as one batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """Scores of a request, and timings of its batch.

    Attributes:
        scores: fp32 `[B]` or `[B, K]` of each output, in the spec's order; views of a batch of
            several requests.
        lookup_seconds: of merging and lookups, as `BatchResult`, for the whole batch.
        tower_seconds: as `BatchResult`, for the whole batch.
        ids_outside: ids of the request that were outside their tables (and ignored or wrapped), or
            unknown to id maps.
        ids_unknown: tables, and the number of the request's ids that shard hosts did not know.
        default_tables: ascending names of the tables whose default rows some of its bags took.
    """

    scores: tuple[NDArray[np.float32], ...]
    lookup_seconds: float
    tower_seconds: float
    ids_outside: int
    work: LookupWork
    batch: ModelInput
    default_tables: tuple[str, ...] = ()
    ids_unknown: tuple[tuple[str, int], ...] = ()


def run_batch(
    model: Model,
    requests: Sequence[ModelInput],
    deadline: float = inf,
    *,
    may_default: bool = False,
) -> list[RequestResult]:
    """Runs at least one request on the calling thread; several have their ids checked.

    Pooled embeddings are those of each request alone, to the bit. Scores may differ by the rounding
    of the tower's precision: products add up in another order at another size, and shared values
    are computed once. `deadline`, `may_default` and errors are those of `ModelEngine.run`.
    """
    started = perf_counter()
    merged = requests[0] if len(requests) == 1 else merge_inputs(requests)
    merging = perf_counter() - started
    ran = model.engine.run(merged, deadline, may_default=may_default)
    whole = RequestResult(
        ran.scores,
        merging + ran.lookup_seconds,
        ran.tower_seconds,
        ran.ids_outside,
        ran.work,
        merged,
        tuple(ran.work.defaults),
        _ids_unknown(ran.work, slice(None)) if ran.work.unknown else (),
    )
    return [whole] if len(requests) == 1 else split_result(whole, requests)


def split_result(whole: RequestResult, requests: Sequence[ModelInput]) -> list[RequestResult]:
    """Results per request of a merged batch, in the order of `requests`."""
    results = []
    for request, place in zip(requests, sample_slices(requests), strict=True):
        unknown = _ids_unknown(whole.work, place)
        results.append(
            replace(
                whole,
                scores=tuple(score[place] for score in whole.scores),
                ids_outside=request.ids_outside + sum(count for _, count in unknown),
                default_tables=_default_tables(whole.work, place),
                ids_unknown=unknown,
            )
        )
    return results


def _default_tables(work: LookupWork, place: slice) -> tuple[str, ...]:
    return tuple(table for table, samples in work.defaults.items() if samples[place].any())


def _ids_unknown(work: LookupWork, place: slice) -> tuple[tuple[str, int], ...]:
    counts = ((table, int(samples[place].sum())) for table, samples in work.unknown.items())
    return tuple((table, count) for table, count in counts if count)
