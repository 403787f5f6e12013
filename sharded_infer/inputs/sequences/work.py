"""Work of a request, for a scheduler that learns the cost of a batch by its size."""

import numpy as np

from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.layout import GRAIN
from sharded_infer.specs.model_spec import ModelSpec


class BatchWork:
    """Counts the work of one model's batches."""

    def __init__(self, spec: ModelSpec) -> None:
        features = spec.input_features
        names = {one.features[0]: name for name, one in spec.sequences.items()}
        # By position of each sequence's first feature: its longest length, and if it is computed
        # once.
        self._sequences = {
            at: (spec.sequences[names[feature.name]].max_length, is_once)
            for at, feature in enumerate(features)
            if feature.name in names
            for is_once in [names[feature.name] in spec.tower.user_inputs]
        }

    def units(self, batch: ModelInput) -> int:
        """Its samples, and eighths of the positions of their sequences.

        A sequence that a request's samples share counts once if the tower computes it once.
        """
        total = batch.batch_size
        if not self._sequences:
            return total
        for group in batch.groups:
            for feature, lengths in zip(group.features, group.lengths, strict=True):
                if feature in self._sequences:
                    longest, is_once = self._sequences[feature]
                    grains = -(-np.minimum(lengths, longest) // GRAIN)
                    if len(lengths) != batch.batch_size and not is_once:
                        grains = grains * (
                            batch.batch_size if batch.repeats is None else batch.repeats
                        )
                    total += int(grains.sum())
        return total
