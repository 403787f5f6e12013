"""What a server refuses of inputs that are well-formed: too many, or no numbers."""

from dataclasses import dataclass

import numpy as np

from sharded_infer.batch import ModelInput
from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.request import LENGTHS, VALUES, WEIGHTS
from sharded_infer.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class InputLimits:
    """What a request may hold beside samples.

    Attributes:
        max_ids: of all features, as they are sent.
        max_inputs: tensors.
    """

    max_ids: int = 2**23
    max_inputs: int = 4096


class InputCheck:
    """Looks at the requests of one model after they are read. Any thread may call."""

    def __init__(self, spec: ModelSpec, limits: InputLimits) -> None:
        """Prepares what does not depend on the request.

        Args:
            spec: the model.
            limits: what a request may hold.
        """
        self._limits = limits
        self._features = [feature.name for feature in spec.features]
        self._dense = tuple(spec.dense.inputs)
        self._refuses = spec.serving.non_finite == "refuse"

    @property
    def counts_inputs(self) -> bool:
        """Whether the model has more inputs, with companions, than a request may have."""
        known = 3 * len(self._features) + len(self._dense) + len((VALUES, LENGTHS, WEIGHTS))
        return known > self._limits.max_inputs

    def check_count(self, inputs: int) -> None:
        """Refuses a message of many tensors, before they are looked at.

        Args:
            inputs: how many it holds.

        Raises:
            RequestTooLargeError: more than allowed.
        """
        if inputs > self._limits.max_inputs:
            raise RequestTooLargeError(
                f"inputs: expected at most {self._limits.max_inputs}, got {inputs}"
            )

    def check(self, found: ModelInput) -> None:
        """Refuses too many ids, and NaN and infinity unless the model takes them.

        Args:
            found: what the request asks.

        Raises:
            RequestTooLargeError: more ids than allowed.
            RequestError: a dense input or weights with NaN or infinity.
        """
        ids = sum(group.values.size for group in found.groups)
        if ids > self._limits.max_ids:
            raise RequestTooLargeError(f"ids: expected at most {self._limits.max_ids}, got {ids}")
        if not self._refuses:
            return
        for name, array in zip(self._dense, found.dense, strict=True):
            if not np.isfinite(array).all():
                row, column = np.argwhere(~np.isfinite(array))[0].tolist()
                raise RequestError(
                    f"input {name!r}: expected finite numbers, got {array[row, column]} in row "
                    f"{row}, column {column}"
                )
        for group in found.groups:
            if group.weights is not None and not np.isfinite(group.weights).all():
                at = int(np.flatnonzero(~np.isfinite(group.weights))[0])
                # Ids lie feature by feature.
                ends = np.cumsum(group.lengths.sum(axis=1))
                feature = group.features[int(np.searchsorted(ends, at, side="right"))]
                raise RequestError(
                    f"weights of {self._features[feature]!r}: expected finite numbers, "
                    f"got {group.weights[at]}"
                )
