"""The fp32 model: what the trained weights and tower score before anything is quantized."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.bags import Bags
from quant.source import WeightSource
from sharded_infer.arrays import tensor_of
from sharded_infer.batch import ModelInput
from sharded_infer.errors import InputError, TowerError
from sharded_infer.id_policy import IdPolicy
from sharded_infer.spec import ModelSpec


def fp32_scores(
    spec: ModelSpec,
    source: WeightSource,
    keys: Mapping[str, str],
    tower: nn.Module,
    model_input: ModelInput,
) -> dict[str, NDArray[np.float32]]:
    """Scores samples with the trained weights, reading only the rows they use.

    Args:
        spec: the model.
        source: the trained weights.
        keys: each table's key in the source.
        tower: the tower as trained.
        model_input: one jagged batch of all features.

    Returns:
        fp32 `[B]` or `[B, K]` by output name.

    Raises:
        InputError: the samples are not one batch of all features, or share a dense input.
        RequestError: a sample's id is outside a table whose policy is `error`.
    """
    group, samples = model_input.groups[0], model_input.batch_size
    if len(model_input.groups) != 1 or group.batch_size != samples:
        raise InputError("golden samples: expected one jagged batch of all features")
    if any(len(array) != samples for array in model_input.dense):
        raise InputError(f"golden samples: expected {samples} rows of every dense input")
    weights = None if group.weights is None else tensor_of(group.weights)
    bags = Bags(tensor_of(group.values), tensor_of(group.lengths), weights)
    bags, _ = IdPolicy(spec.features).apply(bags)
    pooled, start = [], 0
    for feature, lengths in zip(spec.features, bags.lengths, strict=True):
        stop = start + int(lengths.sum())
        values = bags.values[start:stop]
        rows = _rows(source, keys[feature.table.name], values, feature.table.dim)
        if bags.weights is not None:
            rows = rows * bags.weights[start:stop, None]
        owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        sums = torch.zeros(len(lengths), feature.table.dim).index_add_(0, owners, rows)
        if feature.table.pooling == "mean":
            sums = sums / lengths.clamp(min=1)[:, None]
        pooled.append(sums)
        start = stop
    dense = {
        name: tensor_of(array)
        for name, array in zip(spec.dense.inputs, model_input.dense, strict=True)
    }
    return _run_tower(spec, tower, dense, torch.cat(pooled, dim=1))


def _rows(source: WeightSource, key: str, values: Tensor, dim: int) -> Tensor:
    unique, inverse = torch.unique(values, return_inverse=True)
    rows = [source.read(key, row, row + 1).float() for row in unique.tolist()]
    return torch.cat(rows)[inverse] if rows else torch.empty(0, dim)


def _run_tower(
    spec: ModelSpec, tower: nn.Module, dense: dict[str, Tensor], embeddings: Tensor
) -> dict[str, NDArray[np.float32]]:
    was_training = tower.training
    tower.eval()
    try:
        with torch.inference_mode():
            scores = tower(**dense, embeddings=embeddings)
    finally:
        tower.train(was_training)
    names = spec.tower.outputs
    if isinstance(scores, Tensor):
        scores = {names[0]: scores}
    if not isinstance(scores, Mapping) or set(scores) != set(names):
        raise TowerError(f"tower: expected the outputs {list(names)}, got {scores!r:.200}")
    return {name: scores[name].float().numpy() for name in names}
