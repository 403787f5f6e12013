"""Work of a request, for a scheduler that learns the cost of a batch by its size."""

import numpy as np

from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.layout import GRAIN
from sharded_infer.specs.model_spec import ModelSpec


class BatchWork:
    """Counts the work of one model's batches.

    Attributes:
        longest: int64 `[features]`: of a sequence's first feature, the sequence's longest length;
            0 of others.
        computed_once: bool `[features]`: the tower computes its sequence once for a request's
            samples.
    """

    def __init__(self, spec: ModelSpec) -> None:
        features = spec.input_features
        names = {sequence.features[0]: name for name, sequence in spec.sequences.items()}
        # A feature of several tables counts once.
        of_features = [names.pop(feature.name, None) for feature in features]
        self.longest = np.array(
            [0 if name is None else spec.sequences[name].max_length for name in of_features],
            np.int64,
        )
        self.computed_once = np.array([name in spec.tower.user_inputs for name in of_features])

    def units(self, batch: ModelInput) -> int:
        """Its samples, and eighths of the positions of their sequences.

        A sequence that a request's samples share counts once if the tower computes it once.
        """
        total = batch.batch_size
        if not self.longest.any():
            return total
        for group in batch.groups:
            for feature, lengths in zip(group.features, group.lengths, strict=True):
                longest = self.longest[feature]
                if longest:
                    grains = -(-np.minimum(lengths, longest) // GRAIN)
                    if len(lengths) != batch.batch_size and not self.computed_once[feature]:
                        grains = grains * (
                            batch.batch_size if batch.repeats is None else batch.repeats
                        )
                    total += int(grains.sum())
        return total
