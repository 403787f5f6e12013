"""The tower's inputs of a sequence."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LENGTHS", "SequenceInput"]

# Suffix of the input with a sequence's lengths.
LENGTHS = "_lengths"


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """A sequence as inputs of a tower, for L positions.

    Attributes:
        width: of a position: the rows of all members, side by side.
        max_length: the largest L, at least 1.
        fixed: L is always `max_length`; else that of the batch's longest sequence, at least 1.
        dense: name and width of each dense companion.
    """

    width: int
    max_length: int
    fixed: bool = False
    dense: Mapping[str, int] = field(default_factory=dict)

    @property
    def grows(self) -> bool:
        """True if L differs between batches."""
        return not self.fixed and self.max_length > 1
