"""Bags of a model's input, one by one."""

import numpy as np
from numpy.typing import NDArray

from sharded_infer.inputs.model_input import JaggedBatch, ModelInput

Bag = tuple[list[int], list[float]]


def repeats_of(asked: ModelInput, group: JaggedBatch) -> NDArray[np.int64]:
    """Samples that read each bag of a group."""
    if group.batch_size == asked.batch_size:
        return np.ones(group.batch_size, np.int64)
    return np.array([asked.batch_size]) if asked.repeats is None else asked.repeats


def bags_in(group: JaggedBatch) -> list[list[Bag]]:
    """Ids and weights of each feature's bags; a weight is 1 where there is none."""
    weights = np.ones(len(group.values), np.float32) if group.weights is None else group.weights
    ends = np.cumsum(group.lengths.ravel())[:-1]
    ids, scales = np.split(group.values, ends), np.split(weights, ends)
    bags = [(values.tolist(), scale.tolist()) for values, scale in zip(ids, scales, strict=True)]
    size = group.batch_size
    return [bags[at * size : (at + 1) * size] for at in range(len(group.features))]


def bags_of(asked: ModelInput) -> list[list[Bag]]:
    by_feature: dict[int, list[Bag]] = {}
    for group in asked.groups:
        owners = np.arange(group.batch_size).repeat(repeats_of(asked, group))
        for feature, bags in zip(group.features, bags_in(group), strict=True):
            by_feature[feature] = [bags[owner] for owner in owners]
    assert sorted(by_feature) == list(range(len(by_feature)))
    return [by_feature[feature] for feature in sorted(by_feature)]
