"""What parts say while they are made, where all machines reach it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A part that Ray has started.

    Attributes:
        node: the machine that had it last: its address, and the beginning of Ray's id.
        done: fp32 bytes of the rows that are encoded since the last start.
    """

    node: str
    done: int


class PartStatusActor:
    """An actor: parts write, the command reads."""

    def __init__(self) -> None:
        self._statuses: dict[int, PartStatus] = {}

    def begin(self, part: int, node: str) -> None:
        """A part is started, the first time or again."""
        self._statuses[part] = PartStatus(node, 0)

    def say(self, part: int, done: int) -> None:
        """How far a part is."""
        self._statuses[part] = replace(self._statuses[part], done=done)

    def read(self) -> Mapping[int, PartStatus]:
        """What is known of each part that was started."""
        return dict(self._statuses)
