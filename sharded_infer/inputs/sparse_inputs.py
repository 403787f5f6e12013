"""The input of each feature: ids come once for several tables."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sharded_infer.inputs.model_input import JaggedBatch
from sharded_infer.specs.model_spec import ModelSpec


class SparseInputs:
    """The jagged inputs of one model: its sparse ones, then the numbers of its sequences.

    Attributes:
        names: of the S inputs, in the spec's order.
        of_features: the input's position for each of the F features.
        copies: the features of each input.
    """

    def __init__(self, spec: ModelSpec) -> None:
        owners = [feature.name for feature in spec.input_features]
        self.names = tuple(dict.fromkeys(owners))
        positions = {name: position for position, name in enumerate(self.names)}
        self.of_features = tuple(positions[owner] for owner in owners)
        counts = Counter(self.of_features)
        self.copies = tuple(counts[position] for position in range(len(self.names)))
        # The last insertion wins.
        first = {owner: feature for feature, owner in reversed(list(enumerate(owners)))}
        self._first_features = tuple(first[name] for name in self.names)

    def to_features(self, batch: JaggedBatch) -> JaggedBatch:
        """Copy the bags of all inputs, lengths `[S, B]`, to features, lengths `[F, B]`."""
        return _taken(batch, self.of_features)

    def from_features(self, batch: JaggedBatch) -> JaggedBatch:
        """Inverse of `to_features`; lengths `[F, B]` of one input's features are equal."""
        return _taken(batch, self._first_features)


def _taken(batch: JaggedBatch, positions: Sequence[int]) -> JaggedBatch:
    if len(positions) == len(batch.features):
        # Both ways: then no input has two features.
        return batch
    ends = np.cumsum(batch.lengths.sum(axis=1))
    starts = ends - batch.lengths.sum(axis=1)
    parts = [slice(starts[p], ends[p]) for p in positions]
    weights = batch.weights
    return JaggedBatch(
        features=tuple(range(len(positions))),
        values=np.concatenate([batch.values[part] for part in parts]),
        lengths=batch.lengths[list(positions)],
        weights=None if weights is None else np.concatenate([weights[part] for part in parts]),
    )
