"""How long each phase of a load takes, and in which one it failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class LoadPhases:
    """The phases of one load, in one process.

    Attributes:
        seconds: by phase, of those that have ended.
        current: the last one that began.
    """

    def __init__(self, first: str) -> None:
        """Starts before the first phase.

        Args:
            first: phase of a failure before the first phase.
        """
        self.seconds: dict[str, float] = {}
        self.current = first

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a phase.

        Args:
            name: one of `metric_families.LOAD_PHASES`.
        """
        self.current = name
        began = monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + monotonic() - began
