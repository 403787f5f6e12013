"""What a server refuses of inputs that are well-formed: too many, or no numbers."""

from dataclasses import dataclass

from sharded_infer.batch import ModelInput
from sharded_infer.errors import RequestTooLargeError
from sharded_infer.finite_check import FiniteCheck
from sharded_infer.request import LENGTHS, VALUES, WEIGHTS
from sharded_infer.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class InputLimits:
    """What a request may hold beside samples.

    Attributes:
        max_ids: of all features, as they are sent; an id of a feature of several tables counts in
            each.
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
        self._known = 3 * len(spec.sparse_inputs) + len(spec.dense.inputs)
        self._finite = FiniteCheck(spec)

    @property
    def max_ids(self) -> int:
        """Ids that a request may have, of all tables that look them up; readers count them."""
        return self._limits.max_ids

    @property
    def counts_inputs(self) -> bool:
        """Whether the model has more inputs, with companions, than a request may have."""
        return self._known + len((VALUES, LENGTHS, WEIGHTS)) > self._limits.max_inputs

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
        """Refuses NaN and infinity unless the model takes them.

        Args:
            found: what the request asks.

        Raises:
            RequestError: a dense input or weights with NaN or infinity.
        """
        self._finite.check(found)
