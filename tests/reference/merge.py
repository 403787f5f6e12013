"""The merge of requests by NumPy's indexing."""

import numpy as np
from numpy.typing import NDArray

from sharded_infer.inputs.merge_layout import MergeSource
from sharded_infer.inputs.model_input import JaggedBatch


def merge_numpy(source: MergeSource) -> tuple[JaggedBatch, ...]:
    """As `native_merge.merge_native`."""
    batch_sizes, layouts = source.batch_sizes, source.layouts
    features = len(source.shared)
    bags = np.where(source.single[layouts], 1, batch_sizes[:, None])  # [R, F], by place
    starts = (np.cumsum(bags) - bags.ravel()).reshape(bags.shape)
    first_bags = np.empty_like(starts)  # [R, F], by feature
    np.put_along_axis(first_bags, source.order[layouts], starts, axis=1)
    single = np.empty(bags.shape, np.bool_)
    np.put_along_axis(single, source.order[layouts], source.single[layouts], axis=1)
    # Counts 0, 1, ... within each request; a bag for all samples stays where it is.
    ends = np.cumsum(batch_sizes)
    within = np.arange(ends[-1]) - np.repeat(ends - batch_sizes, batch_sizes)
    groups = []
    for shared in (False, True):
        chosen = np.flatnonzero(source.shared == shared)
        if not len(chosen):
            continue
        taken = first_bags[:, chosen].T
        if not shared:
            steps = np.repeat(~single[:, chosen].T, batch_sizes, axis=1)
            taken = np.repeat(taken, batch_sizes, axis=1) + steps * within
        groups.append(_take(source, chosen, taken, weighted=source.weighted[shared]))
    assert sum(len(group.features) for group in groups) == features
    return tuple(groups)


def _take(
    source: MergeSource, features: NDArray[np.int64], bags: NDArray[np.int64], *, weighted: bool
) -> JaggedBatch:
    """Bags of the source, `[F, B]`, as a batch."""
    first_ids = np.cumsum(source.lengths) - source.lengths
    lengths = source.lengths[bags]
    flat = lengths.ravel()
    begins = np.cumsum(flat) - flat
    ids = np.repeat(first_ids[bags].ravel() - begins, flat) + np.arange(flat.sum())
    weights = source.weights[ids] if weighted and source.weights is not None else None
    return JaggedBatch(tuple(features.tolist()), source.values[ids], lengths, weights)
