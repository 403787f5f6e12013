"""Several requests as one batch: samples in order, shared bags kept once.

A feature keeps one bag for each request if every request of several samples shares it. Otherwise
its shared bags are repeated for their samples. Servers merge in compiled code (`native/call`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput


class _Bags(NamedTuple):
    """Bags of one feature in a request: a bag for each sample, or one for all."""

    lengths: NDArray[np.int64]
    values: NDArray[np.int64]
    weights: NDArray[np.float32] | None


def merge_inputs(inputs: Sequence[ModelInput]) -> ModelInput:
    """Merge one or more requests of one model with checked ids into one batch, in order.

    A single input is returned unchanged. Otherwise dense inputs are `[B, width]`. If requests share
    features, `repeats` has their batch sizes. Raises InternalError for unchecked ids or merged
    batches.
    """
    if not inputs or any(not each.ids_checked or each.repeats is not None for each in inputs):
        raise InternalError("a merge takes one or more requests whose ids are checked")
    if len(inputs) == 1:
        return inputs[0]
    requests = [_by_feature(one) for one in inputs]
    ranked = [bags for one, bags in zip(inputs, requests, strict=True) if one.batch_size > 1]
    sizes = np.array([one.batch_size for one in inputs], np.int64)
    shared = {f for f in requests[0] if ranked and all(len(b[f].lengths) == 1 for b in ranked)}
    own = requests[0].keys() - shared
    repeated = [
        {f: _repeated(bags[f], one.batch_size) for f in own}
        for one, bags in zip(inputs, requests, strict=True)
    ]
    groups = [_group(sorted(own), repeated), _group(sorted(shared), requests)]
    return ModelInput(
        batch_size=int(sizes.sum()),
        groups=tuple(group for group in groups if group.features),
        dense=tuple(
            np.concatenate(
                [
                    np.resize(one.dense[at], (size, one.dense[at].shape[1]))
                    for one, size in zip(inputs, sizes, strict=True)
                ]
            )
            for at in range(len(inputs[0].dense))
        ),
        ids_checked=True,
        ids_outside=sum(one.ids_outside for one in inputs),
        are_rows=inputs[0].are_rows,
        may_have_gaps=any(one.may_have_gaps for one in inputs),
        repeats=sizes if shared else None,
    )


def _by_feature(one: ModelInput) -> dict[int, _Bags]:
    found = {}
    for group in one.groups:
        ends = np.cumsum(group.lengths.sum(axis=1))
        for feature, lengths, end in zip(group.features, group.lengths, ends, strict=True):
            ids = slice(end - lengths.sum(), end)
            weights = None if group.weights is None else group.weights[ids]
            found[feature] = _Bags(lengths, group.values[ids], weights)
    return found


def _repeated(bags: _Bags, samples: int) -> _Bags:
    times = samples // len(bags.lengths)
    weights = None if bags.weights is None else np.tile(bags.weights, times)
    return _Bags(np.tile(bags.lengths, times), np.tile(bags.values, times), weights)


def _group(features: Sequence[int], requests: Sequence[dict[int, _Bags]]) -> JaggedBatch:
    parts = [bags[feature] for feature in features for bags in requests]
    if not parts:
        return JaggedBatch((), np.empty(0, np.int64), np.empty((0, 0), np.int64))
    weights = None
    if any(part.weights is not None for part in parts):
        weights = np.concatenate(
            [np.ones(len(p.values), np.float32) if p.weights is None else p.weights for p in parts]
        )
    lengths = np.concatenate([part.lengths for part in parts]).reshape(len(features), -1)
    return JaggedBatch(
        tuple(features), np.concatenate([part.values for part in parts]), lengths, weights
    )
