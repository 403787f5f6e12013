"""Several requests, run as one batch."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from sharded_infer.engines.executor import RequestResult, run_batch
from sharded_infer.engines.model import Model
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import ModelInput


def run_together(model: Model, requests: Sequence[ModelInput]) -> list[RequestResult]:
    """The part of each request in the result of one batch; `work` and `batch` are the whole's."""
    whole = run_batch(model, merge_inputs(requests))
    ends = itertools.accumulate(one.batch_size for one in requests)
    results = []
    for one, end in zip(requests, ends, strict=True):
        place = slice(end - one.batch_size, end)
        counts = {table: int(of[place].sum()) for table, of in whole.work.unknown.items()}
        results.append(
            replace(
                whole,
                scores=tuple(score[place] for score in whole.scores),
                ids_outside=one.ids_outside + sum(counts.values()),
                default_tables=tuple(
                    table for table, bags in whole.work.defaults.items() if bags[place].any()
                ),
                ids_unknown=tuple((table, count) for table, count in counts.items() if count),
            )
        )
    return results
