"""Refusal of NaN and infinity in requests, unless the model accepts them."""

import numpy as np

from sharded_infer.errors import RequestError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.specs.model_spec import ModelSpec


class FiniteCheck:
    """Applies `serving.non_finite` to the requests of one model. Thread-safe."""

    def __init__(self, spec: ModelSpec) -> None:
        self._features = [feature.name for feature in spec.input_features]
        # Positions of numbers in jagged inputs.
        numbers = spec.sequence_numbers
        self._numbers = frozenset(at for at, name in enumerate(self._features) if name in numbers)
        self._dense = tuple(spec.dense.inputs)
        self._refuses = spec.serving.non_finite == "refuse"

    def check(self, found: ModelInput) -> None:
        """Refuse NaN and infinity with RequestError, unless the model accepts them."""
        if not self._refuses:
            return
        for name, array in zip(self._dense, found.dense, strict=True):
            # A third of the time of `all`.
            if 0 in np.isfinite(array).tobytes():
                sample, column = np.argwhere(~np.isfinite(array))[0].tolist()
                raise RequestError(
                    f"input {name!r}, sample {sample}: expected finite numbers, got "
                    f"{array[sample, column]} in column {column}"
                )
        for group in found.groups:
            if self._numbers:
                self._check_numbers(group)
            if group.weights is not None and not np.isfinite(group.weights).all():
                at = int(np.flatnonzero(~np.isfinite(group.weights))[0])
                # Ids are feature-major.
                ends = np.cumsum(group.lengths.sum(axis=1))
                feature = group.features[int(np.searchsorted(ends, at, side="right"))]
                raise RequestError(
                    f"weights of {self._features[feature]!r}: expected finite numbers, "
                    f"got {group.weights[at]}"
                )

    def _check_numbers(self, group: JaggedBatch) -> None:
        ends = np.cumsum(group.lengths.sum(axis=1))
        for place, feature in enumerate(group.features):
            if feature in self._numbers:
                bits = group.values[ends[place] - int(group.lengths[place].sum()) : ends[place]]
                numbers = bits.astype(np.uint32).view(np.float32)
                if not np.isfinite(numbers).all():
                    raise RequestError(
                        f"input {self._features[feature]!r}: expected finite numbers, got "
                        f"{numbers[~np.isfinite(numbers)][0]}"
                    )
