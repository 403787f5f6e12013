"""Progress of parts, shared by all machines."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A started part: its last machine, and fp32 bytes of rows encoded since the last start."""

    node: str
    done: int


class PartStatusActor:
    """An actor: parts write, the command reads."""

    def __init__(self) -> None:
        self._statuses: dict[int, PartStatus] = {}

    def begin(self, part: int, node: str) -> None:
        """Record a first or repeated start of a part."""
        self._statuses[part] = PartStatus(node, 0)

    def say(self, part: int, done: int) -> None:
        """Record the progress of a part."""
        self._statuses[part] = replace(self._statuses[part], done=done)

    def read(self) -> Mapping[int, PartStatus]:
        """Status of each started part."""
        return dict(self._statuses)
