"""Which input each feature of a model is looked up by: ids come once for several tables."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sharded_infer.batch import JaggedBatch
from sharded_infer.spec import ModelSpec


class SparseInputs:
    """The sparse inputs of one model.

    Attributes:
        names: of the inputs, S of them, in the spec's order.
        of_features: for each of the F features its input's position.
        copies: for each input, the features that have it.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Numbers the inputs.

        Args:
            spec: the model.
        """
        self.names = spec.sparse_inputs
        owners = [feature.name for feature in spec.features]
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
        """The bags of each input, as they are sent: `to_features` undone.

        Args:
            batch: lengths `[F, B]`, of all features; those of one input are the same.
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
