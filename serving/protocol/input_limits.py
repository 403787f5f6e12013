"""Limits of well-formed inputs."""

from dataclasses import dataclass

from sharded_infer.errors import RequestTooLargeError


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Limits of a request, besides samples.

    Attributes:
        max_ids: of all features; an id of a feature of several tables counts for each.
        max_inputs: tensors.
    """

    max_ids: int = 2**23
    max_inputs: int = 4096

    def check_count(self, inputs: int) -> None:
        """Raises RequestTooLargeError for too many tensors, before they are read."""
        if inputs > self.max_inputs:
            raise RequestTooLargeError(f"inputs: expected at most {self.max_inputs}, got {inputs}")
