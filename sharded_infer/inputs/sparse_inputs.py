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
        copies: for each input, the features that have it.
    """

    def __init__(self, spec: ModelSpec) -> None:
        owners = [feature.name for feature in spec.input_features]
        self.names = tuple(dict.fromkeys(owners))
        positions = {name: position for position, name in enumerate(self.names)}
        self.of_features = tuple(positions[owner] for owner in owners)
        counts = Counter(self.of_features)
        self.copies = tuple(counts[position] for position in range(len(self.names)))
        # The last that is put in stays.
        first = {owner: feature for feature, owner in reversed(list(enumerate(owners)))}
        self._first_features = tuple(first[name] for name in self.names)

    def to_features(self, batch: JaggedBatch) -> JaggedBatch:
        """Copies the bags of each input to its features.

        Args:
            batch: lengths `[S, B]`, of all inputs.

        Returns:
            Lengths `[F, B]`.
        """
        return _taken(batch, self.of_features)

    def from_features(self, batch: JaggedBatch) -> JaggedBatch:
        """The bags of each input, as they are sent: the inverse of `to_features`.

        Args:
            batch: lengths `[F, B]`, of all features; those of one input are equal.
        """
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
