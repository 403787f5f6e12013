"""The trained module on requests of its version."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.errors import RequestError
from sharded_infer.importing.modules.example import Example
from sharded_infer.importing.modules.exported import Called, scores_of
from sharded_infer.importing.modules.keyed_bags import NO_ID, padded_ids
from sharded_infer.importing.modules.placement import Block, Placement
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.tensors import tensor_of


class TrainedCall:
    """Scores of requests by the module that a version was made from."""

    def __init__(
        self, module: Called, example: Example, placement: Placement, spec: ModelSpec
    ) -> None:
        self._module = module
        self._example = example
        self._blocks = placement.blocks
        self._sequences = spec.sequences
        self._dense = {name: place for place, name in enumerate(spec.dense.inputs)}
        owners = [feature.name for feature in spec.input_features]
        self._features = {name: owners.index(name) for name in dict.fromkeys(owners)}

    def __call__(self, model_input: ModelInput) -> Mapping[str, NDArray[np.float32]]:
        """Fp32 scores by output.

        Args:
            model_input: one jagged batch of all features, with ids as sent.

        Raises:
            RequestError: a sample has more or fewer ids than the module takes.
            TowerError: the module cannot be called.
        """
        ends = np.concatenate([[0], model_input.groups[0].lengths.sum(1).cumsum()])
        leaves = [
            torch.zeros(model_input.batch_size, leaf.width, dtype=leaf.tensor.dtype)
            for leaf in self._example.leaves
        ]
        for block in self._blocks:
            target = leaves[block.leaf][:, block.first : block.last]
            if block.is_dense:
                target.copy_(tensor_of(model_input.dense[self._dense[block.name]]))
            elif self._example.leaves[block.leaf].is_bag:
                leaves[block.leaf] = padded_ids(*self._ids(block, model_input, ends), filling=NO_ID)
            else:
                target.copy_(self._history(block, model_input, ends))
        shaped = [
            tensor if leaf.is_bag else tensor.reshape(-1, *leaf.tensor.shape[1:])
            for tensor, leaf in zip(leaves, self._example.leaves, strict=True)
        ]
        return {name: score.numpy() for name, score in scores_of(self._module, shaped).items()}

    def _ids(
        self, block: Block, model_input: ModelInput, ends: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Ids of a feature, and how many each sample has."""
        group, place = model_input.groups[0], self._features[block.name]
        ids = group.values[ends[place] : ends[place + 1]]
        return tensor_of(ids), tensor_of(group.lengths[place])

    def _history(self, block: Block, model_input: ModelInput, ends: NDArray[np.int64]) -> Tensor:
        ids, lengths = self._ids(block, model_input, ends)
        sequence = self._sequences.get(block.sequence)
        least = block.width if sequence is None else sequence.shortest
        if len(other := ((lengths < least) | (lengths > block.width)).nonzero()):
            sample = int(other[0])
            raise RequestError(
                f"feature {block.name!r}, sample {sample}: the trained module takes {block.width} "
                f"ids, got {int(lengths[sample])}"
            )
        is_left = sequence is not None and sequence.pad == "left"
        return padded_ids(ids, lengths, block.width, left=is_left)
