"""Runs a request on a model, or several merged ones."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from sharded_infer.engines.model import Model
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.lookups.lookup_work import LookupWork


@dataclass(frozen=True, slots=True)
class RequestResult:
    """Scores of a batch, and its timings.

    Attributes:
        scores: fp32 `[B]` or `[B, K]` of each output, in the spec's order.
        lookup_seconds, tower_seconds: as `BatchResult`.
        ids_outside: ids that were outside their tables (and ignored or wrapped), or
            unknown to id maps.
        ids_unknown: tables, and the number of ids that shard hosts did not know.
        default_tables: ascending names of the tables whose default rows some bags took.
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
    batch: ModelInput,
    deadline: float = inf,
    *,
    may_default: bool = False,
) -> RequestResult:
    """Runs a request, or several merged ones, on the calling thread.

    Pooled embeddings are those of each request alone, to the bit. Scores may differ by the rounding
    of the tower's precision: products add up in another order at another size, and shared values
    are computed once. `deadline`, `may_default` and errors are those of `ModelEngine.run`.
    """
    ran = model.engine.run(batch, deadline, may_default=may_default)
    return RequestResult(
        ran.scores,
        ran.lookup_seconds,
        ran.tower_seconds,
        ran.ids_outside,
        ran.work,
        batch,
        tuple(ran.work.defaults),
        _ids_unknown(ran.work),
    )


def _ids_unknown(work: LookupWork) -> tuple[tuple[str, int], ...]:
    counts = ((table, int(samples.sum())) for table, samples in work.unknown.items())
    return tuple((table, count) for table, count in counts if count)
