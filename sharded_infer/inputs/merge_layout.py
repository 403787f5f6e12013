"""Concatenated requests, the input of both implementations of the merge.

A layout is the order of a request's features, and which of them have one bag for all its samples.
Requests of one client have one layout, so there are few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted
from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import ModelInput

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# Clients choose layouts: the bound keeps a hostile client from filling memory with them.
_MAX_LAYOUTS = 64
# A group's features; True if its bags are one for all samples.
_Part = tuple[tuple[int, ...], bool]


@dataclass(frozen=True, slots=True)
class MergeSource:
    """R requests of F features with L layouts.

    Attributes:
        batch_sizes: int64 `[R]`.
        layouts: int64 `[R]`, each request's.
        order: int64 `[L, F]`, the feature at each place of a request.
        single: bool `[L, F]`, True if that place has one bag for all samples.
        shared: bool `[F]`, True if the merged batch keeps one bag for each request.
        lengths: int64, of the concatenated bags of all requests' groups.
        values: int64, their ids.
        weights: fp32, one for each id; None if no request has any.
        weighted: True if merged groups have weights: the group by sample, the group by request.
    """

    batch_sizes: Ints
    layouts: Ints
    order: Ints
    single: Bools
    shared: Bools
    lengths: Ints
    values: Ints
    weights: NDArray[np.float32] | None
    weighted: tuple[bool, bool]


def lay_out(inputs: Sequence[ModelInput]) -> MergeSource:
    """Concatenate the groups of two or more requests of one model.

    Raises InternalError for a merged batch, or for different models.
    """
    layouts, numbers, ranked = _layouts_of(inputs)
    order = np.stack([layout[0] for layout in layouts])
    single = np.stack([layout[1] for layout in layouts])
    by_feature = np.zeros_like(single)
    np.put_along_axis(by_feature, order, single, axis=1)
    # A request of one sample is both shared and unshared.
    shared: Bools = np.logical_and(by_feature[ranked].all(axis=0), bool(ranked))
    groups = [group for one in inputs for group in one.groups]
    weights, weighted = None, (False, False)
    if any(group.weights is not None for group in groups):
        weights = np.concatenate(
            [
                np.ones(len(group.values), np.float32) if group.weights is None else group.weights
                for group in groups
            ]
        )
        found = {f for group in groups if group.weights is not None for f in group.features}
        with_weights = shared[sorted(found)]
        weighted = (not with_weights.all(), bool(with_weights.any()))
    return MergeSource(
        batch_sizes=np.array([one.batch_size for one in inputs], np.int64),
        layouts=np.array(numbers, np.int64),
        order=order,
        single=single,
        shared=shared,
        lengths=np.concatenate([group.lengths for group in groups], axis=None),
        values=np.concatenate([group.values for group in groups]),
        weights=weights,
        weighted=weighted,
    )


def _layouts_of(
    inputs: Sequence[ModelInput],
) -> tuple[list[tuple[Ints, Bools]], list[int], list[int]]:
    layouts: list[tuple[Ints, Bools]] = []
    # Keyed by identity first: decoders reuse one tuple for the same features.
    known: dict[tuple[int | bool, ...], int] = {}
    numbers_of: dict[tuple[_Part, ...], int] = {}
    numbers: list[int] = []
    ranked: set[int] = set()
    for one in inputs:
        if one.repeats is not None:
            raise InternalError("a merged batch cannot be merged again")
        batch = one.batch_size
        key: tuple[int | bool, ...] = ()
        for group in one.groups:
            bags = group.lengths.shape[1]
            if bags not in (1, batch):
                raise InternalError(
                    f"a group has {bags} bags a feature for {counted(batch, 'sample')}"
                )
            key += (id(group.features), bags != batch)
        number = known.get(key)
        if number is None:
            parts = tuple((g.features, g.lengths.shape[1] != batch) for g in one.groups)
            number = numbers_of.get(parts)
            if number is None:
                number = numbers_of[parts] = len(layouts)
                layouts.append(_layout(parts))
            known[key] = number
        numbers.append(number)
        if batch > 1:
            ranked.add(number)
    if len({len(order) for order, _ in layouts}) != 1:
        raise InternalError("requests of different models cannot be merged")
    return layouts, numbers, sorted(ranked)


@lru_cache(maxsize=_MAX_LAYOUTS)
def _layout(parts: tuple[_Part, ...]) -> tuple[Ints, Bools]:
    order = [feature for features, _ in parts for feature in features]
    if sorted(order) != list(range(len(order))):
        raise InternalError(f"the groups must hold every feature once, got {order}")
    single = [shared for features, shared in parts for _ in features]
    return np.array(order, np.int64), np.array(single, np.bool_)
