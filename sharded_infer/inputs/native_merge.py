"""The compiled merge; its pseudocode is in its source, `native/merge/`.

Small merges keep the GIL: releasing and reacquiring it takes longer than the copying.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from kernels.native_library import address_of
from sharded_infer.abi import merge as abi
from sharded_infer.inputs.merge_layout import MergeSource
from sharded_infer.inputs.model_input import JaggedBatch

# Ids above which the copying takes a millisecond; a wait for the GIL beside a busy thread takes 5.
_MANY_IDS = 1 << 20
_LARGE = abi.measure_merge, abi.merge
_SMALL = abi.measure_merge_keeping_gil, abi.merge_keeping_gil
_PLACE = len(abi.Place._fields_)


def merge_native(source: MergeSource) -> tuple[JaggedBatch, ...]:
    """The merged groups, if they have features: by sample, then by request."""
    measure, copy = _SMALL if len(source.values) <= _MANY_IDS else _LARGE
    requests, features = len(source.batch_sizes), len(source.shared)
    places = np.empty((requests, features, _PLACE), np.int64)
    merge = abi.Merge(
        requests,
        features,
        address_of(source.batch_sizes),
        address_of(source.layouts),
        address_of(source.order),
        address_of(source.single),
        address_of(source.shared),
        address_of(source.lengths),
        address_of(source.values),
        None if source.weights is None else address_of(source.weights),
        address_of(places),
    )
    measure(merge)
    groups = []
    bags = (int(source.batch_sizes.sum()), requests)
    for shared in (False, True):
        chosen = tuple(np.flatnonzero(source.shared == shared).tolist())
        group = JaggedBatch.trusted(
            chosen,
            np.empty(merge.id_counts[shared], np.int64),
            np.empty((len(chosen), bags[shared]), np.int64),
            np.empty(merge.id_counts[shared], np.float32) if source.weighted[shared] else None,
        )
        merge.groups[shared].lengths = address_of(group.lengths)
        merge.groups[shared].values = address_of(group.values)
        merge.groups[shared].weights = None if group.weights is None else address_of(group.weights)
        groups.append(group)
    copy(merge)
    return tuple(group for group in groups if group.features)


def merge_uniform(groups: Sequence[JaggedBatch]) -> JaggedBatch | None:
    """Merge at least one group with the same features; None if only some have weights.

    Each has as many bags for each feature as the merged group gets.
    """
    first = groups[0]
    weighted = first.weights is not None
    if any((g.weights is not None) != weighted for g in groups):
        return None
    parts: list[int] = []
    ids = bags = 0
    for group in groups:
        own = group.lengths.shape[1]
        parts += (
            address_of(group.lengths),
            address_of(group.values),
            0 if group.weights is None else address_of(group.weights),
            own,
        )
        ids += len(group.values)
        bags += own
    merged = JaggedBatch.trusted(
        first.features,
        np.empty(ids, np.int64),
        np.empty((len(first.features), bags), np.int64),
        np.empty(ids, np.float32) if weighted else None,
    )
    # Numbers of `BagSource`s, which are filled much faster.
    table = (ctypes.c_int64 * len(parts))(*parts)
    weights = None if merged.weights is None else address_of(merged.weights)
    out = abi.MergedGroup(address_of(merged.lengths), address_of(merged.values), weights)
    merge = abi.Uniform(len(groups), len(first.features), ctypes.addressof(table), out)
    copy = abi.merge_uniform if ids > _MANY_IDS else abi.merge_uniform_keeping_gil
    copy(merge)
    return merged
