"""What parts say while they are made, where all machines reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PartState:
    """A part that Ray has started.

    Attributes:
        node: the machine that had it last: its address, and the beginning of Ray's id.
        done: fp32 bytes of the rows that are encoded since the last start.
    """

    node: str
    done: int


class PartBoard:
    """An actor: parts write, the command reads."""

    def __init__(self) -> None:
        self._states: dict[int, PartState] = {}

    def begin(self, part: int, node: str) -> None:
        """A part is started, the first time or again."""
        self._states[part] = PartState(node, 0)

    def say(self, part: int, done: int) -> None:
        """How far a part is."""
        self._states[part] = replace(self._states[part], done=done)

    def read(self) -> Mapping[int, PartState]:
        """What is known of each part that was started."""
        return dict(self._states)
