"""The tower's inputs of a sequence."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["IDS", "LENGTHS", "SequenceInput"]

# Suffix of the input with a sequence's lengths.
LENGTHS = "_lengths"
# Suffix of the input with a feature's ids.
IDS = "_ids"


@dataclass(frozen=True, slots=True)
class SequenceInput:
    """A sequence as inputs of a tower, for L positions.

    Attributes:
        width: of a position: the rows of all members, side by side.
        max_length: the largest L, at least 1.
        fixed: L is always `max_length`; else that of the batch's longest sequence, at least 1.
        dense: name and width of each dense companion.
        min_length: the fewest positions that a sample uses.
        ids: features whose ids are inputs too.
    """

    width: int
    max_length: int
    fixed: bool = False
    dense: Mapping[str, int] = field(default_factory=dict)
    min_length: int = 0
    ids: tuple[str, ...] = ()

    @property
    def grows(self) -> bool:
        """True if L differs between batches."""
        return not self.fixed and self.max_length > max(1, self.min_length)

    def nearest(self, wanted: int) -> int:
        """The L that is nearest to a wanted one."""
        if not self.grows:
            return self.max_length
        return min(max(wanted, self.min_length), self.max_length)
