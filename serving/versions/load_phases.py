"""Times of the phases of a load, and the phase in which it failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic


class LoadPhases:
    """Phases of a load in one process: seconds of ended ones, and the last one begun."""

    def __init__(self, first: str) -> None:
        """Starts before the first phase; `first` is the phase of a failure until then."""
        self.seconds: dict[str, float] = {}
        self.current = first

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a phase, one of `metric_families.LOAD_PHASES`."""
        self.current = name
        began = monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + monotonic() - began
