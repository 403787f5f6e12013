"""Merging of requests into one batch: samples in order, shared bags kept once.

A feature keeps one bag for each request if every request of several samples shares it. Otherwise
its shared bags are repeated for their samples.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InternalError
from sharded_infer.inputs.merge_layout import lay_out
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.native_merge import merge_native, merge_uniform


def merge_inputs(inputs: Sequence[ModelInput]) -> ModelInput:
    """Merge one or more requests with checked ids into one batch, in order.

    A single input is returned unchanged. Otherwise dense inputs are `[B, width]`. If requests share
    features, `repeats` has their batch sizes. Raises InternalError for unchecked ids or different
    models.
    """
    if not inputs or not all(one.ids_checked for one in inputs):
        raise InternalError("a merge takes one or more requests whose ids are checked")
    if len(inputs) == 1:
        return inputs[0]
    merged = _merge_uniform(inputs)
    if merged is not None:
        return merged
    source = lay_out(inputs)
    groups = merge_native(source)
    return ModelInput(
        batch_size=int(source.batch_sizes.sum()),
        groups=groups,
        dense=tuple(_rows(inputs, position) for position in range(len(inputs[0].dense))),
        ids_checked=True,
        ids_outside=sum(one.ids_outside for one in inputs),
        are_rows=inputs[0].are_rows,
        may_have_gaps=any(one.may_have_gaps for one in inputs),
        repeats=source.batch_sizes if source.shared.any() else None,
    )


def _merge_uniform(inputs: Sequence[ModelInput]) -> ModelInput | None:
    first = inputs[0]
    sizes = []
    for one in inputs:
        if one.repeats is not None or len(one.groups) != len(first.groups):
            return None
        for group, like in zip(one.groups, first.groups, strict=True):
            # Decoders reuse one tuple for the same features.
            same = group.features is like.features
            whole = group.lengths.shape[1] == one.batch_size
            if not same or whole != (like is first.groups[0]):
                return None
        sizes.append(one.batch_size)
    groups = []
    for position in range(len(first.groups)):
        merged = merge_uniform([one.groups[position] for one in inputs])
        if merged is None:
            return None
        groups.append(merged)
    return ModelInput(
        batch_size=sum(sizes),
        groups=tuple(groups),
        dense=tuple(_rows(inputs, position) for position in range(len(first.dense))),
        ids_checked=True,
        ids_outside=sum(one.ids_outside for one in inputs),
        are_rows=inputs[0].are_rows,
        may_have_gaps=any(one.may_have_gaps for one in inputs),
        repeats=np.array(sizes, np.int64) if len(first.groups) > 1 else None,
    )


def sample_slices(inputs: Sequence[ModelInput]) -> tuple[slice, ...]:
    """The place of each request's samples in the merged batch."""
    ends = itertools.accumulate(one.batch_size for one in inputs)
    return tuple(slice(end - one.batch_size, end) for one, end in zip(inputs, ends, strict=True))


def _rows(inputs: Sequence[ModelInput], position: int) -> NDArray[np.float32]:
    arrays = []
    for one in inputs:
        array = one.dense[position]
        whole = len(array) == one.batch_size
        arrays.append(array if whole else np.repeat(array, one.batch_size, axis=0))
    return np.concatenate(arrays)
